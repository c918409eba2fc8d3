"""The use of CPU, memory, disk, network and GPUs by jobs and the node, as metrics."""
