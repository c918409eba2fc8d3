"""Real traces through the scheduler's own decide and evolve, in virtual time.

See docs/guides/simulate.md.
"""
