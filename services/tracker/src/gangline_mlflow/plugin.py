"""Factories that MLflow calls for addresses with gangline+sqlite: or gangline+postgresql:.

MLflow imports this module while it is imported itself, so its own modules are imported later.
"""

from __future__ import annotations

import threading
from typing import Any

from gangline_mlflow.parts import current

PREFIX = "gangline+"
_stores: dict[str, Any] = {}
_registries: dict[str, Any] = {}
_lock = threading.Lock()


def tracking_store(store_uri: str, artifact_uri: str | None) -> Any:
    """The tracking store of this process.

    MLflow asks again for some requests, such as a model version of a logged model. A second store
    would have points of its own, so the first one is returned.
    """
    from gangline_mlflow.store import open_store

    with _lock:
        if store_uri not in _stores:
            database = store_uri.removeprefix(PREFIX)
            _stores[store_uri] = open_store(database, artifact_uri, current())
        return _stores[store_uri]


def registry_store(store_uri: str) -> Any:
    """The model registry of this process, in the same database."""
    from gangline_mlflow.protected_registry import ProtectedRegistry

    with _lock:
        if store_uri not in _registries:
            _registries[store_uri] = ProtectedRegistry(store_uri.removeprefix(PREFIX))
        return _registries[store_uri]
