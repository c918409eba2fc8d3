"""Job spec, events and topic catalog: the contract of Gangline."""
