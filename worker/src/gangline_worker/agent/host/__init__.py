"""This machine as the agent finds it: devices, addresses, processes, connections, limits."""
