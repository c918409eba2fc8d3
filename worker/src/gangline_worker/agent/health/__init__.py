"""How healthy this node is: GPUs, its check before it joins, notices of the cloud."""
