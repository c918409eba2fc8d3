"""Derived live views: rolling, at least once, forgotten on restart. Nothing decides on them."""
