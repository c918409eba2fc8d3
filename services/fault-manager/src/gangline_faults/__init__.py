"""fault-manager: which nodes and gangs are alive, which failed, and which restart."""
