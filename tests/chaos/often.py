"""One fault done to one job again and again: it comes up each time, and never runs twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from chaos.deaths import Deaths
from chaos.platforms import BreakablePlatform
from chaos.world import CHECKPOINT, HYPERPARAMETERS, Attack, Broken
from gangline_schemas.events.requests import JobCancelRequested
from support.harnesses.log_watch import LogWatch

TELL_EVERY = 10
TRIES = 5
Tell = Callable[[str], None]


def kill_often(platform: BreakablePlatform, watch: LogWatch, kills: int, tell: Tell) -> int:
    """Kill a rank of one job once each of its attempts has committed; how many restarts came."""
    attack = _endless(platform, watch)
    for number in range(1, kills + 1):
        _wait_commit(attack, number)
        attack.kill_rank(number % 2)
        watch.wait_step(attack.job, 1, attempt=number + 1)
        if number % TELL_EVERY == 0:
            tell(f"{number} kills, {number} restarts")
    return _cancelled(attack)


def cut_often(platform: BreakablePlatform, watch: LogWatch, cuts: int, tell: Tell) -> int:
    """Cut off the node of one job once each of its attempts has committed; how many restarts came.

    Raises Broken when a rank of the node that is cut off still ran when the job ran elsewhere.
    """
    attack, shortest_s = _endless(platform, watch), float("inf")
    for number in range(1, cuts + 1):
        watched = _watched(attack)
        before = attack.attempt()
        node = platform.nodes[attack.node()]
        with watched as deaths:
            node.cut()
            try:
                _wait_started(attack, before + 1)
                shortest_s = min(shortest_s, deaths.must_precede(attack.pids()))
            finally:
                node.mend()
        watch.wait_step(attack.job, 1, attempt=attack.attempt())
        if number % TELL_EVERY == 0:
            tell(f"{number} cuts; at least {shortest_s:.2f} s between the last death and the start")
    return _cancelled(attack)


def _watched(attack: Attack) -> Deaths:
    """The ranks of an attempt that has committed, and runs.

    On a busy machine one may end by itself: then those of the next. Raises Broken after `TRIES`.
    """
    for _ in range(TRIES):
        attempt = attack.attempt()
        _wait_commit(attack, attempt)
        with suppress(ProcessLookupError):
            return Deaths(attack.pids())
        _wait_started(attack, attempt + 1)
    raise Broken(f"{TRIES} attempts ended by themselves")


def _endless(platform: BreakablePlatform, watch: LogWatch) -> Attack:
    job = watch.submit(
        "phoenix",
        hyperparameters={**HYPERPARAMETERS, "steps": 1_000_000, "checkpoint_every_steps": 5},
        checkpoint=CHECKPOINT,
        restart={"max": 1000},
    )
    attack = Attack(platform, watch, job)
    attack.wait("gang.allocated")
    return attack


def _wait_commit(attack: Attack, attempt: int) -> None:
    """Until this attempt has committed a checkpoint, or a later one."""
    attack.wait("checkpoint.committed", lambda data: data.checkpoint.attempt >= attempt)


def _wait_started(attack: Attack, attempt: int) -> None:
    """Until both ranks of this attempt run, or of a later one."""
    for wanted in range(2):
        attack.wait(
            "worker.started",
            lambda data, rank=wanted: data.attempt >= attempt and data.rank == rank,
        )


def _cancelled(attack: Attack) -> int:
    """Cancel it; how often it was started again."""
    attack.watch.publish(JobCancelRequested(job_id=attack.job), attack.job)
    attack.watch.wait_state(attack.job, "cancelled", "failed")
    return len(attack.watch.of("gang.allocated", attack.job)) - 1
