"""A job that is made to fail: what a benchmark does to it, and when it was back. Unix seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from platform_harness import Submitter

from gangline_schemas.catalog import Topic
from support.harnesses.log_watch import LogWatch, Seen

TOPICS = tuple(topic for topic in Topic if topic is not Topic.HEARTBEATS)


@dataclass
class Gang:
    """A running job, of two ranks unless it names another number."""

    watch: LogWatch
    submitter: Submitter
    job: str

    @classmethod
    def submit(
        cls,
        watch: LogWatch,
        submitter: Submitter,
        name: str,
        *,
        memory_gb: float,
        gpus: int = 2,
        image: str | None = None,
        **settings: Any,
    ) -> Gang:
        """A job of the trainer with these settings, which saves as they say; in an image."""
        minutes = settings.pop("interval_minutes", 60)
        job = submitter.submit(
            name,
            hyperparameters={"strategy": "fsdp"} | settings,
            checkpoint={"interval_minutes": minutes, "keep": {"latest": 2}},
            restart={"max": 1000},
            resources={"gpus": gpus, "memory_per_gpu_gb": memory_gb},
            image=image,
        )
        return cls(watch, submitter, job)

    def wait(self, kind: str, wanted: Callable[[Any], bool] = lambda _: True) -> Seen:
        """The job's first event of this type that is wanted."""
        return self.watch.wait_for(
            lambda seen: (
                seen.type == kind
                and self.job in {getattr(seen.data, n, None) for n in ("job_id", "run_id")}
                and wanted(seen.data)
            )
        )

    def wait_settled(self, attempt: int, steps: int) -> None:
        """Until the attempt has committed a checkpoint and taken so many steps after it."""
        ref = self.wait(
            "checkpoint.committed", lambda data: data.checkpoint.attempt == attempt
        ).data.checkpoint
        self.wait(
            "worker.step",
            lambda data: data.attempt == attempt and max(data.step) >= ref.step + steps,
        )

    def signal(self, attempt: int, rank: int, number: int) -> float:
        """Send a rank a signal; when."""
        started = self.wait(
            "worker.started", lambda data: (data.attempt, data.rank) == (attempt, rank)
        )
        at = time.time()
        os.kill(started.data.pid, number)
        return at

    def first_step_s(self, attempt: int) -> float:
        """When the attempt had taken its first step."""
        found = self.wait("worker.step", lambda data: data.attempt == attempt and data.rank == 0)
        return min(found.data.time_ms) / 1e3

    def ready_s(self, attempt: int) -> float:
        """When rank 0 of the attempt said that it was ready for its first step."""

        def says(data: Any) -> list[float]:
            return [line.time_ms / 1e3 for line in data.lines if line.text.startswith("ready")]

        found = self.wait("worker.log", lambda data: data.attempt == attempt and says(data))
        return min(says(found.data))

    def end(self) -> None:
        """Cancel it."""
        self.submitter.cancel(self.job)
        self.watch.wait_state(self.job, "cancelled", "succeeded", "failed")
