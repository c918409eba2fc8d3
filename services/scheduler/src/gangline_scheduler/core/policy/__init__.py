"""Policies: pure functions that say which job, where, and why not.

See docs/concepts/scheduling.md.
"""
