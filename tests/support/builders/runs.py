"""Runs as answers of REST."""

from __future__ import annotations

from datetime import UTC, datetime

from gangline_schemas.api.runs import Run

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


def run(run_id: str, **parameters: str) -> Run:
    """A run of the team nlp with these hyperparameters, on one GPU for 2 hours."""
    texts = dict.fromkeys(
        ("project", "name", "user", "state", "reason", "strategy", "code_ref", "data_snapshot"), ""
    )
    numbers = dict.fromkeys(("attempt", "restarts", "gpus", "priority"), 1)
    return Run.model_validate(
        {
            **texts, **numbers, "run_id": run_id, "team": "nlp", "submitted_at": NOW,
            "started_at": NOW, "ended_at": None, "gpu_seconds": 7200.0,
            "hyperparameters": parameters,
        }
    )  # fmt: skip
