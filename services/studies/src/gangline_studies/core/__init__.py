"""The studies service without I/O: studies, trials, rungs, and when to ask for a suggestion."""
