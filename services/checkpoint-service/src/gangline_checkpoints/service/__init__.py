"""The checkpoint service as a process: its settings, and its work in the object store."""
