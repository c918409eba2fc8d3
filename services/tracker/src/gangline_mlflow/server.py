"""MLflow's own application as this process serves it: guard, fast lanes, then MLflow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gangline_mlflow.config import Settings
from gangline_mlflow.parts import ARTIFACTS, current
from gangline_mlflow.plugin import PREFIX


def environment(settings: Settings) -> Mapping[str, str]:
    """The variables that `mlflow server` sets for its own workers, and what stays off.

    Off are programs that run on this host for any user, models whose files run programs when they
    are read (pickle), calls to addresses that users name, and telemetry.
    """
    return {
        "_MLFLOW_SERVER_FILE_STORE": f"{PREFIX}{settings.mlflow_database}",
        "_MLFLOW_SERVER_REGISTRY_STORE": f"{PREFIX}{settings.mlflow_database}",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": f"{ARTIFACTS}:/",
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "MLFLOW_ENABLE_WORKSPACES": "true",
        "MLFLOW_WORKSPACE_STORE_URI": settings.mlflow_database,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ENABLE_AI_GATEWAY": "false",
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }


def create_app(settings: Settings) -> Any:
    """The application. Call `parts.use` first; takes seconds, and migrates the database."""
    os.environ.update(environment(settings))
    from mlflow.server import fastapi_app
    from mlflow.server.handlers import _get_model_registry_store, _get_tracking_store

    from gangline_mlflow import artifact_repo
    from gangline_mlflow.artifact_bytes import ArtifactBytes
    from gangline_mlflow.artifact_lane import ArtifactLane
    from gangline_mlflow.collecting import Collector
    from gangline_mlflow.guard import Guard
    from gangline_mlflow.lane import FastLane
    from gangline_mlflow.registry_lane import RegistryLane
    from gangline_mlflow.run_lane import RunLane
    from gangline_mlflow.trace_lane import TraceLane
    from gangline_mlflow.wsgi import BoundedResponder

    fastapi_app._EfficientWSGIResponder = BoundedResponder  # noqa: SLF001 - see ADR 32
    artifact_repo.install(_repository(settings))
    store = _get_tracking_store()
    artifacts = current().artifacts
    artifacts.count_in(
        ArtifactBytes(
            store.engine, settings.mlflow_artifact_bytes, settings.limits(), artifacts.bytes_of
        )
    )
    registry = _get_model_registry_store()
    lanes = ArtifactLane(FastLane(TraceLane(fastapi_app.app), store), artifacts)
    guarded = RunLane(Guard(Collector(lanes, store, registry), store.jobs), store)
    return RegistryLane(guarded, registry)


def _repository(settings: Settings) -> Any:
    if settings.mlflow_presigned:
        from gangline_mlflow.artifact_direct import DirectArtifacts

        DirectArtifacts.secret = settings.service_token.get_secret_value().encode()
        return DirectArtifacts
    from gangline_mlflow.artifact_repo import TeamArtifacts

    return TeamArtifacts
