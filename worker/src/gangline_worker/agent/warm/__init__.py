"""Starts ranks from interpreters that have torch imported: a zygote on CPUs, standbys on GPUs."""
