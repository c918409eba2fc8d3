"""The alerts service without I/O: facts, rules, silences and notifications."""
