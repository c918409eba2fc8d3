"""Logs of releases, kept for ever: each folds to the state that its release recorded.

`python -m golden 0.1.0` (with PYTHONPATH=tests) writes the logs of a release; see `record.py`.
"""
