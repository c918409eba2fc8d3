"""Every field of every event at its least and most, through everybody who reads it."""
