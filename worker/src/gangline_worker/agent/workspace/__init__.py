"""What a gang has on this node before its ranks start: code, data caches, secrets, variables."""
