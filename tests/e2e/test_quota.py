"""Two teams on four GPUs: which jobs are rejected or wait, why, and what is charged."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from gangline_schemas.events.requests import JobCancelRequested, JobSubmitted
from support.builders.held_job import held, plain_spec
from support.harnesses.log_watch import LogWatch, Seen


def submit(watch: LogWatch, name: str, team: str, gpus: int, **fields: Any) -> str:
    job_id = f"{name}-{uuid.uuid4().hex[:8]}"
    spec = plain_spec(name, team, gpus, **fields)
    watch.publish(JobSubmitted(job_id=job_id, spec=spec), job_id)
    return job_id


def wait_reason(watch: LogWatch, job_id: str, code: str) -> Seen:
    return watch.wait_for(
        lambda s: s.type == "job.waiting" and s.data.job_id == job_id and s.data.code == code
    )


def position(watch: LogWatch, event_type: str, job_id: str) -> int:
    """Where the decision stands in its log."""
    (seen,) = watch.of(event_type, job_id)
    assert seen.envelope.position is not None
    return seen.envelope.position.seq


def test_a_team_at_its_limit_waits_for_itself_while_others_run(watch: LogWatch, gate: Path) -> None:
    first = submit(watch, "first", "small", 1, **held(gate))
    watch.wait_state(first, "running")
    second = submit(watch, "second", "small", 1, run="true")
    reason = wait_reason(watch, second, "quota").data.message
    assert reason == (
        "needs 1 GPU; team small has 1 of the 1 that it may use now; "
        "it starts when jobs of the team end"
    )
    other = submit(watch, "other", "research", 1, run="true")
    assert watch.wait_state(other, "succeeded", "failed").data.state == "succeeded"
    assert not watch.of("gang.allocated", second), "it started above the team's limit"
    gate.touch()
    assert watch.wait_state(second, "succeeded", "failed").data.state == "succeeded"
    assert position(watch, "gang.released", first) < position(watch, "gang.allocated", second)


def test_a_gang_that_does_not_fit_waits_and_starts_whole(watch: LogWatch, gate: Path) -> None:
    holder = submit(watch, "holder", "default", 3, **held(gate))
    watch.wait_state(holder, "running")
    gang = submit(watch, "gang", "research", 2, run="true")
    reason = wait_reason(watch, gang, "capacity").data.message
    assert reason.startswith("needs 2 GPUs together; 1 of 4 are free")
    assert f"default/{holder} has 3" in reason
    # The one free GPU belongs to no gang: another test may use it meanwhile.
    single = submit(watch, "single", "default", 1, run="true")
    assert watch.wait_state(single, "succeeded", "failed").data.state == "succeeded"
    assert not watch.of("gang.allocated", gang), "a part of a gang was placed"
    gate.touch()
    assert watch.wait_state(gang, "succeeded", "failed").data.state == "succeeded"
    (allocated,) = watch.of("gang.allocated", gang)
    assert sum(len(node.gpus) for node in allocated.data.nodes) == 2
    started = [seen.data.rank for seen in watch.of("worker.started", gang)]
    assert sorted(started) == [0, 1]


def test_the_ledger_is_the_scheduling_log_integrated(watch: LogWatch, gate: Path) -> None:
    """Also over a restart (two attempts are charged) and a cancelled job."""
    twice = submit(
        watch,
        "twice",
        "research",
        2,
        run='[ "$GANGLINE_ATTEMPT" -gt 1 ] || kill -9 $$',
        restart={"max": 1},
    )
    stopped = submit(watch, "stopped", "small", 1, **held(gate))
    watch.wait_state(stopped, "running")
    watch.publish(JobCancelRequested(job_id=stopped), stopped)
    assert watch.wait_state(stopped, "cancelled", "failed").data.state == "cancelled"
    assert watch.wait_state(twice, "succeeded", "failed").data.state == "succeeded"
    for job, attempts in ((twice, 2), (stopped, 1)):
        watch.wait_for(
            lambda s, job=job, attempts=attempts: (
                s.type == "usage.charged" and s.data.job_id == job and s.data.attempt == attempts
            )
        )
    watch.settle()
    for job, attempts in ((twice, 2), (stopped, 1)):
        charged = {s.data.attempt: s.data.gpu_seconds for s in watch.of("usage.charged", job)}
        released = {s.data.attempt: s.data.gpu_seconds for s in watch.of("gang.released", job)}
        assert len(charged) == len(watch.of("usage.charged", job)) == attempts, "charged twice"
        assert charged == pytest.approx(released, abs=0.01)
        assert charged == pytest.approx(integral(watch, job), abs=0.01)
        assert all(seconds > 0 for seconds in charged.values())


def integral(watch: LogWatch, job_id: str) -> dict[int, float]:
    """GPU-seconds by attempt, from the times of the scheduler's events alone."""
    begun = {s.data.attempt: s for s in watch.of("gang.allocated", job_id)}
    return {
        s.data.attempt: begun[s.data.attempt].data.world_size
        * (s.envelope.time - begun[s.data.attempt].envelope.time).total_seconds()
        for s in watch.of("gang.released", job_id)
    }
