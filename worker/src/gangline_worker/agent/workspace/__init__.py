"""Prepares a gang's files on this node before its ranks start: code, caches, secrets, variables."""
