"""From a dead or frozen rank to training again, through the whole platform.

Two ranks on CPUs. A rank of the demo's model (0.87 M parameters) is killed, and frozen by SIGSTOP:
from the signal to the moment at which the next attempt had taken its first step. A rank of 134 M
parameters is killed: to the moment at which the next attempt was ready for its first step, and had
taken it; restoring 1.61 GB is part of that.

Beside it torch's own: the small model trained under `torchrun`, which restarts all ranks, from a
checkpoint of DCP. From `kill -9` of a rank to the first new step; and what comes of a frozen one.

From what the large model's saves and restarts cost here follows how much of a gang's time would
become progress at 128, 1,024 and 8,192 GPUs (docs/guides/effective-time.md).
"""

from __future__ import annotations

import signal
from importlib.metadata import version
from statistics import median
from typing import NamedTuple

from gang_harness import TOPICS, Gang
from harness import Context, Result, scratch
from models import LARGE, SMALL
from platform_harness import Submitter, on_the_bus, running_platform
from torchrun_harness import WAIT_S, Torchrun

from gangline_checkpoints.core.policy.ettr import Costs, expected
from gangline_checkpoints.core.policy.interval import PRIOR, SAVES, Save, advise
from support.harnesses.log_watch import LogWatch

SETTLED_STEPS = 5
SIZES = (128, 1024, 8192)
HEARTBEAT_TIMEOUT_S = 60.0
FROZEN_S, FROZEN_QUICK_S = 30, 10


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


def torchrun_s(context: Context) -> tuple[list[float], str]:
    """Seconds from `kill -9` to the first new step, `WAIT_S` if there was none; a note on them."""
    kills, attempt = context.repeats(3), 0
    taken: list[float] = []
    with scratch() as folder, Torchrun(folder, max_restarts=3 * kills) as gang:
        for rank in range(kills):
            gang.wait_settled(attempt)
            at = gang.signal(attempt, rank % 2, signal.SIGKILL)
            step = gang.first_step(attempt)
            if step is None:
                return [*taken, WAIT_S], f"kill {rank + 1}: no step within {WAIT_S:.0f} s"
            attempt = step.attempt
            taken.append(step.time_s - at)
            context.say(f"0.87 M, killed under torchrun: first new step after {taken[-1]:.2f} s")
        gang.wait_settled(attempt)
        import_s = gang.started(attempt, 0).model_import_s
        at = gang.signal(attempt, 1, signal.SIGSTOP)
        wait_s = context.repeats(FROZEN_S, FROZEN_QUICK_S)
        step = gang.first_step(attempt, wait_s)
    frozen = (
        f"no step within {wait_s} s" if step is None else f"back after {step.time_s - at:.1f} s"
    )
    return taken, (
        f"torchrun, torch {version('torch')}; {attempt} restarts for {kills} kills; of it "
        f"{import_s:.2f} s import what the model needs besides torch; a frozen rank: {frozen}"
    )


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
    """Both models, one after the other, on one platform; then torchrun alone."""
    with (
        running_platform(nodes=1, live_view=False, hang_min_s=5.0) as platform,
        on_the_bus(platform, TOPICS) as (watch, submitter),
    ):
        small = small_s(context, watch, submitter)
        found = large(context, watch, submitter)
        watch.assert_sound()
    torchrun, note = torchrun_s(context)
    times = median(torchrun) / median(small[signal.SIGKILL])
    return [
        context.median("restart_kill_to_step_s", small[signal.SIGKILL], "s"),
        context.median("restart_torchrun_kill_to_step_s", torchrun, "s", note=note),
        context.result("restart_torchrun_over_ours", times, "x"),
        context.median("restart_frozen_to_step_s", small[signal.SIGSTOP], "s"),
        context.median(
            "restart_large_kill_to_ready_s",
            found.ready_s,
            "s",
            note=f"first step {median(found.step_s):.1f} s after the kill",
        ),
        *predicted(context, found),
    ]
