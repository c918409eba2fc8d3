"""Quota as a process: its settings, and the file of teams."""
