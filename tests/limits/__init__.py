"""The isolation tests on a kernel of their own that has control groups, for machines without."""
