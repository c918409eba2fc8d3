"""Every field of every event at its least and most, through all its readers."""
