"""Studies: what each trial tries, when it runs, and which ones stop early."""
