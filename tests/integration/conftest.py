"""Real processes that the tests of several files share; tests/order.py keeps these on a worker."""

from support.fixtures.isolation import open_folder, running_victim, stand, victim
from support.fixtures.mlflow import open_mlflow, server
from support.fixtures.tracker import curves, history, tracker

__all__ = [
    "curves",
    "history",
    "open_folder",
    "open_mlflow",
    "running_victim",
    "server",
    "stand",
    "tracker",
    "victim",
]
