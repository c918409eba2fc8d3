"""The TCPStores of gangs: their ports, their process, and the proxy that admits ranks alone."""
