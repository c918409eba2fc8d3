"""The platform under the load of a large cluster, whose nodes are simulated."""
