"""Effective training time: a job that is killed again and again, beside what the model predicts.

A gang of two ranks trains the demo's model on the real platform. First it is left alone, to learn
what its saves cost; then it saves at the interval that is best for that and for kills MTTF_S apart,
which are drawn from an exponential distribution. From its steps, commits and kills follows where
the time went; `step_s` is what a step takes in that same run while nothing is saved, so that other
work on the machine slows both sides alike.

Predicted from the run's own costs: by the closed form, by simulated runs with kills of their own,
and by a replay of the very kills that were done, which has to agree.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from statistics import fmean, median, quantiles

from ettr_account import Account, Kill, Saved, Step, account
from gang_harness import TOPICS, Gang
from harness import Context, Result
from models import SMALL
from platform_harness import Submitter, on_the_bus, running_platform

from gangline_checkpoints.core.policy.ettr import Parts, expected, replay
from gangline_checkpoints.core.policy.interval import OVERLAP, STORE_SHARE, optimum_s
from support.harnesses.log_watch import LogWatch

MTTF_S = 40.0
RUN_S = 240.0
SEED = 5
SIMULATED = 500
QUIET_SAVES = 5


def costs_of_a_save(watch: LogWatch, submitter: Submitter) -> tuple[float, float]:
    """What a save costs training and how long it keeps the store busy, of a quiet job; seconds."""
    gang = Gang.submit(watch, submitter, "quiet", memory_gb=1, checkpoint_every_steps=10, **SMALL)
    while len(watch.of("checkpoint.committed", gang.job)) < QUIET_SAVES:
        seen = {seen.data.checkpoint.step for seen in watch.of("checkpoint.committed", gang.job)}
        gang.wait("checkpoint.committed", lambda data, seen=seen: data.checkpoint.step not in seen)
    gang.end()
    saves = [seen.data for seen in watch.of("checkpoint.committed", gang.job)][1:]
    cost_s = median(it.blocked_s + OVERLAP * it.write_s for it in saves)
    return cost_s, median(it.write_s + it.verify_s for it in saves)


def disturbed(
    context: Context, watch: LogWatch, submitter: Submitter, interval_s: float, run_s: float
) -> Account:
    """Let a job fail for so long, and account for its time."""
    gang = Gang.submit(
        watch, submitter, "disturbed", memory_gb=1, interval_minutes=interval_s / 60, **SMALL
    )
    first = gang.wait("checkpoint.committed").data.checkpoint.step
    began, now = time.time(), 0.0
    draw, killed = random.Random(SEED), []
    while (now := now + draw.expovariate(1 / MTTF_S)) < run_s:
        _read_until(watch, began + now)
        attempt = len(killed) + 1
        killed.append((attempt, gang.signal(attempt, 1, signal.SIGKILL)))
        gang.first_step_s(attempt + 1)
        context.say(f"kill {attempt} after {now:.0f} of {run_s:.0f} s")
    _read_until(watch, began + run_s)
    end = time.time()
    gang.end()
    noticed = {
        seen.data.attempt: seen.data.failed_at.timestamp()
        for seen in watch.of("gang.failed", gang.job)
    }
    steps = [it for it in _steps(watch, gang.job) if it.ended_s <= end]
    steps = [it for it in steps if (it.attempt, it.step) >= (1, first)]
    known = {(it.attempt, it.step) for it in steps}
    saves = [
        Saved(ref.attempt, ref.step, seen.data.write_s, seen.envelope.time.timestamp())
        for seen in watch.of("checkpoint.committed", gang.job)
        if ((ref := seen.data.checkpoint).attempt, ref.step) in known
    ]
    return account(
        steps, saves, [Kill(attempt, at, noticed[attempt]) for attempt, at in killed], MTTF_S
    )


def _steps(watch: LogWatch, job: str) -> list[Step]:
    found = {
        (seen.data.attempt, step): time_ms / 1e3
        for seen in watch.of("worker.step")
        if seen.data.run_id == job and seen.data.rank == 0
        for step, time_ms in zip(seen.data.step, seen.data.time_ms, strict=True)
    }
    return [Step(attempt, step, at) for (attempt, step), at in sorted(found.items())]


def _read_until(watch: LogWatch, moment: float) -> None:
    while (left := moment - time.time()) > 0:
        watch.poll(min(left, 0.2))


def simulated(found: Account, run_s: float) -> list[float]:
    """The ratios of runs as long as this one, with kills of their own, in order."""
    draw = random.Random(SEED)

    def gaps() -> Iterator[float]:
        now = 0.0
        while (gap_s := draw.expovariate(1 / MTTF_S)) < run_s - now:
            now += gap_s
            yield gap_s

    ratios = []
    for _ in range(SIMULATED):
        kills = [*gaps()]
        rest_s = run_s - sum(kills)
        ratios.append(replay(found.costs, lambda *_: found.interval_s, kills, rest_s).ettr)
    return sorted(ratios)


def words(parts: Parts) -> str:
    """The shares of wall time that were lost."""
    shares = {
        "noticing": parts.detecting_s,
        "starting again": parts.restarting_s,
        "work done again": parts.lost_s,
        "saves": parts.saving_s,
    }
    return ", ".join(f"{name} {part / parts.wall_s:.1%}" for name, part in shares.items())


def run(context: Context) -> list[Result]:
    """The measured ratio, the three predictions, and how far the replay is from it."""
    with (
        running_platform(nodes=1, live_view=False) as platform,
        on_the_bus(platform, TOPICS) as (watch, submitter),
    ):
        cost_s, busy_s = costs_of_a_save(watch, submitter)
        interval_s = max(optimum_s(cost_s, MTTF_S), busy_s / STORE_SHARE, 1.0)
        context.say(f"a save costs {cost_s:.3f} s, is there after {busy_s:.2f} s")
        run_s = RUN_S if not context.quick else RUN_S / 3
        found = disturbed(context, watch, submitter, interval_s, run_s)
        watch.assert_sound()
    again = replay(found.costs, lambda *_: found.interval_s, found.gaps, found.rest_s)
    theory = expected(found.costs, found.interval_s)
    ratios = simulated(found, found.parts.wall_s)
    cuts = quantiles(ratios, n=20)
    costs = found.costs
    measured = (
        f"{len(found.gaps)} kills in {found.parts.wall_s:.0f} s; {words(found.parts)}; a step "
        f"takes {found.step_s * 1e3:.0f} ms; a save each {found.interval_s:.1f} s costs "
        f"{costs.save_s:.3f} s, counts after {costs.commit_s:.2f} s; noticed in "
        f"{costs.detect_s:.2f} s, back in {costs.restart_s:.2f} s more"
    )
    return [
        context.result("ettr_measured", found.parts.ettr, "x", note=measured),
        context.result("ettr_replayed", again.ettr, "x", note=f"the same kills; {words(again)}"),
        context.result("ettr_expected", theory.ettr, "x", note=f"closed form; {words(theory)}"),
        context.result(
            "ettr_simulated",
            fmean(ratios),
            "x",
            note=f"{SIMULATED} runs, 90 % of them {cuts[0]:.3f}..{cuts[-1]:.3f}",
        ),
        context.result("ettr_off_by", abs(found.parts.ettr - again.ettr), "x"),
    ]
