"""This machine as a node: its folder, its checks, its agent."""
