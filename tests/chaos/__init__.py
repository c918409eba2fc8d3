"""The fault matrix: each fault done for real to a job that trains, and what came of it.

`make chaos` or `PYTHONPATH=tests python -m chaos` prints it.
"""
