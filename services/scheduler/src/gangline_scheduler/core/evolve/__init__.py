"""The fold: the scheduler's state after each event of its own log, one module a subject.

A number that goes back (an attempt, a rank out of range) means that the log is broken. Then
`LogBrokenError` ends the process. Cost per event: one job and the nodes of its gang.
"""

from gangline_scheduler.core.evolve import gangs, jobs, nodes, settings
from gangline_scheduler.core.evolve.registry import fold

__all__ = ["fold", "gangs", "jobs", "nodes", "settings"]
