"""Newest checkpoints of jobs that ended: some 100 bytes of JSON for each job.

A year has 150,000 such jobs at a time (5,000 a day, for 30 days), so no models are kept of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from gangline_schemas.checkpoint import commit_key
from gangline_schemas.events.scheduling import CheckpointRef


@dataclass(frozen=True, slots=True)
class EndedRun:
    """Whose it was, since when, and a line with its newest checkpoints, oldest first."""

    team: str
    ended_at: datetime
    line: str = "[]"

    @classmethod
    def of(cls, team: str, ended_at: datetime, checkpoints: Sequence[CheckpointRef]) -> Self:
        """With these checkpoints."""
        groups: list[list[Any]] = []
        for point in checkpoints:
            usual = commit_key("", point.attempt, point.step)
            place = [point.attempt, point.step, point.world_size]
            prefix = point.commit_key.removesuffix(usual)
            if prefix == point.commit_key:  # a key of another form
                groups.append([point.job_id, None, [[*place, point.commit_key]]])
            elif groups and groups[-1][:2] == [point.job_id, prefix]:
                groups[-1][2].append(place)
            else:
                groups.append([point.job_id, prefix, [place]])
        return cls(team, ended_at, json.dumps(groups, separators=(",", ":")))

    @property
    def checkpoints(self) -> tuple[CheckpointRef, ...]:
        """Its newest checkpoints, oldest first."""
        return tuple(
            CheckpointRef(
                job_id=job_id,
                attempt=attempt,
                step=step,
                world_size=world_size,
                commit_key=key[0] if key else commit_key(prefix, attempt, step),
            )
            for job_id, prefix, places in json.loads(self.line)
            for attempt, step, world_size, *key in places
        )
