"""The way of a step: rank, agent, gangline.steps, live view, gangline.progress, lists."""

from __future__ import annotations

import contextlib

import psutil
import pytest

from gangline.commands.jobs import aged_steps
from gangline.sdk import connect
from gangline_schemas.api.jobs import Job
from support.fixtures.platform import RunningPlatform
from support.harnesses.log_watch import PACED
from support.waiting import wait_until

VIEW = "live-view-0"
FURTHER = 50
"""Steps: more than are on their way at a time."""


@pytest.mark.nightly
def test_lists_keep_the_last_step_while_the_live_view_is_away_and_go_on_after_it(
    platform: RunningPlatform,
) -> None:
    with (
        platform.watching() as watch,
        connect(platform.client.url, platform.client.token) as client,
    ):
        job_id = watch.submit("progress", command=PACED, hyperparameters={"steps": 100_000})

        def listed() -> Job:
            return client.get(job_id)

        def reported() -> int:
            """The newest step that a rank reported."""
            watch.poll()
            steps = [s.data.step[-1] for s in watch.of("worker.step") if s.data.run_id == job_id]
            return max(steps, default=0)

        def measured() -> bool:
            """Whether steps came, and all that is known of a job's progress."""
            job = listed()
            known = (job.progress_at, job.tokens_per_s, job.data_wait_share)
            return (job.step or 0) >= 5 and None not in (*known, job.estimated_remaining_s)

        wait_until("the first steps, and their rates", measured)
        assert listed().stalled_since is None

        view = psutil.Process(platform.pid(VIEW))
        view.suspend()  # it is away, and nothing restarts it
        try:

            def stands() -> bool:
                """Whether many steps were reported and lists showed none of them."""
                step, seen = listed().step, reported()
                wait_until("further steps", lambda: reported() >= seen + FURTHER)
                return listed().step == step

            wait_until("lists that stand still", stands)
            before, seen = listed(), reported()
            assert (before.step or 0) < seen
            assert before.progress_at is not None
            later = before.progress_at.replace(year=before.progress_at.year + 1)
            assert aged_steps(before, later).endswith(" ago)")
            wait_until("more steps", lambda: reported() >= seen + FURTHER)
            assert (listed().step, listed().loss) == (before.step, before.loss)
            assert listed().progress_at == before.progress_at

            view.kill()
            steps: list[int] = []

            def caught_up() -> bool:
                steps.append(listed().step or 0)
                return steps[-1] >= seen + FURTHER

            wait_until("the steps of meanwhile", caught_up)
            assert steps == sorted(steps), "it fell back"
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                view.kill()
