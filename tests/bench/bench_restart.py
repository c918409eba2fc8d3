"""From a dead or frozen rank to training again, through the whole platform.

Two ranks on CPUs. A rank of the demo's model (0.87 M parameters) is killed, and frozen by SIGSTOP:
from the signal to the moment at which the next attempt had taken its first step. A rank of 134 M
parameters is killed: to the moment at which the next attempt was ready for its first step, and had
taken it; restoring 1.61 GB is part of that.

From what the large model's saves and restarts cost here follows how much of a gang's time would
become progress at 128, 1,024 and 8,192 GPUs (docs/guides/effective-time.md).
"""

from __future__ import annotations

import signal
from statistics import median
from typing import NamedTuple

from gang_scene import TOPICS, Gang
from harness import Context, Result
from models import LARGE, SMALL
from scene import Submitter, on_the_bus, running_platform

from gangline_checkpoints.policy.ettr import Costs, expected
from gangline_checkpoints.policy.interval import PRIOR, SAVES, Save, advise
from log_watch import LogWatch

SETTLED_STEPS = 5
SIZES = (128, 1024, 8192)
HEARTBEAT_TIMEOUT_S = 60.0


class Large(NamedTuple):
    """Of the model of 134 M parameters: seconds to ready and to the first step; its saves."""

    ready_s: list[float]
    step_s: list[float]
    saves: list[Save]


def small_s(context: Context, watch: LogWatch, submitter: Submitter) -> dict[int, list[float]]:
    """Seconds from each signal to the first new step."""
    gang = Gang.submit(
        watch,
        submitter,
        "small",
        memory_gb=1,
        checkpoint_every_steps=10,
        log_every_steps=50,
        **SMALL,
    )
    wanted = [signal.SIGKILL] * context.repeats(5) + [signal.SIGSTOP] * context.repeats(3)
    taken: dict[int, list[float]] = {signal.SIGKILL: [], signal.SIGSTOP: []}
    for attempt, number in enumerate(wanted, start=1):
        # Before it can be called hung, a gang has to have shown how long its steps take.
        gang.wait_settled(attempt, 40 if number == signal.SIGSTOP else SETTLED_STEPS)
        at = gang.signal(attempt, attempt % 2, number)
        taken[number].append(gang.first_step_s(attempt + 1) - at)
        context.say(f"0.87 M, signal {number:d}: first new step after {taken[number][-1]:.2f} s")
    gang.end()
    return taken


def large(context: Context, watch: LogWatch, submitter: Submitter) -> Large:
    """Kill ranks of the large model."""
    gang = Gang.submit(watch, submitter, "large", memory_gb=4, checkpoint_every_steps=4, **LARGE)
    found = Large([], [], [])
    for attempt in range(1, context.repeats(3) + 1):
        gang.wait_settled(attempt, 1)
        at = gang.signal(attempt, 1, signal.SIGKILL)
        found.ready_s.append(gang.ready_s(attempt + 1) - at)
        found.step_s.append(gang.first_step_s(attempt + 1) - at)
        context.say(f"134 M, killed: ready after {found.ready_s[-1]:.2f} s")
    gang.wait_settled(attempt + 1, 1)
    gang.end()
    for seen in watch.of("checkpoint.committed", gang.job):
        found.saves.append(Save(seen.data.blocked_s, seen.data.write_s, seen.data.verify_s))
    return found


def predicted(context: Context, found: Large) -> list[Result]:
    """The effective training time ratio of these costs, with the advised interval."""
    results = []
    for gpus in SIZES:
        advice = advise(found.saves[-SAVES:], gpus, PRIOR.count / PRIOR.gpu_hours)
        costs = Costs(advice.mtbf_s, advice.cost_s, advice.busy_s, 0.0, median(found.step_s))
        slow = Costs(advice.mtbf_s, advice.cost_s, advice.busy_s, HEARTBEAT_TIMEOUT_S, 60.0)
        note = (
            f"fails every {advice.mtbf_s / 3600:.1f} h, saves every {advice.interval_s:.0f} s "
            f"({advice.limited_by}; a save costs {advice.cost_s:.2f} s, counts after "
            f"{advice.busy_s:.1f} s), back in {costs.down_s:.1f} s; "
            f"{expected(slow, advice.interval_s).ettr:.4f} if noticed after 60 s, back in 60 more"
        )
        ratio = expected(costs, advice.interval_s).ettr
        results.append(context.result(f"ettr_predicted_{gpus}_gpus", ratio, "x", note=note))
    return results


def run(context: Context) -> list[Result]:
    """Both models, one after the other, on one platform."""
    with (
        running_platform(nodes=1, live_view=False, hang_min_s=5.0) as platform,
        on_the_bus(platform, TOPICS) as (watch, submitter),
    ):
        small = small_s(context, watch, submitter)
        found = large(context, watch, submitter)
        watch.assert_sound()
    return [
        context.median("restart_kill_to_step_s", small[signal.SIGKILL], "s"),
        context.median("restart_frozen_to_step_s", small[signal.SIGSTOP], "s"),
        context.median(
            "restart_large_kill_to_ready_s",
            found.ready_s,
            "s",
            note=f"first step {median(found.step_s):.1f} s after the kill",
        ),
        *predicted(context, found),
    ]
