"""Random clusters under every policy: the invariants after each input, and equal replays.

A story draws unequal nodes (models, racks, blocks, NVLink domains), a tree of teams, and steps:
jobs of all kinds in groups, some without GPUs, reports, failures, drains, changed limits, spent
budgets, time. After each input invariants 1, 2, 3, 6, 7 and 16 hold (scenarios/checked.py). Each
step ends with a repeated input, which must lead to nothing, and with a replica that folded the
written log to the same state.

The stories are the same each time. `GANGLINE_SOAK_DECISIONS` sets how many decisions are made in
all and `GANGLINE_SOAK_SEED` which stories are played; `make soak` asks for millions of new ones. A
story that fails is printed as drawn; with `GANGLINE_SHRINK=1` it is made small first, in minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from gangline_bus.decision import Decision
from gangline_scheduler.core.invariants import consistent
from gangline_scheduler.core.model import Member
from gangline_scheduler.core.policy.config import ORDERS
from gangline_scheduler.core.state import State
from gangline_scheduler.service.config import SchedulerSettings
from gangline_schemas.base import Event
from gangline_schemas.catalog import event_types
from gangline_schemas.events.faults import FailureCause, NodeFailed, NodeRecovered
from gangline_schemas.events.quota import (
    DrainAdmitted,
    JobAdmitted,
    TeamBudgetChanged,
    TeamConfigured,
)
from gangline_schemas.events.workers import ExitReason, NodeJoined
from gangline_schemas.team_limits import TeamConfig
from scenarios.checked import Checked
from scenarios.grammar import JobRow, NodeRow
from scenarios.play import job_spec, node_info

DECISIONS = int(os.environ.get("GANGLINE_SOAK_DECISIONS", "2500"))
FIRST = int(os.environ.get("GANGLINE_SOAK_SEED", "0")) * 1_000_000
RESERVATIONS = ("off", "easy", "conservative")
POLICIES = [(order, reservation) for order in ORDERS for reservation in RESERVATIONS]
EXAMPLES = 3
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
if "GANGLINE_SHRINK" in os.environ:
    PHASES.append(Phase.shrink)
SETTLED = 20

PARENTS = {"lab": None, "nlp": "lab", "cv": "lab", "asr": None}
TEAMS = tuple(PARENTS)
WITHIN = (None, None, None, None, "node", "rack", "nvlink", "block")
MODELS: tuple[list[str], ...] = ([], [], [], ["h100"], ["a100", "h100"], ["b200"])
NODE = st.tuples(
    st.integers(0, 8), st.sampled_from(["h100", "h100", "a100", "mixed"]), st.integers(0, 11)
)
STEP = st.tuples(
    st.sampled_from(
        """submit submit submit submit prepare prepare report report finish finish finish gone gone
        save fail node_fail final cancel restore priority rejoin rejoin silent recover leave drain
        cordon undrain team team move spent tick minutes minutes hours settle""".split()  # noqa: SIM905 - the weights stay readable
    ),
    st.integers(0, 63),
    st.integers(0, 63),
)
UNLIKE = {
    "queue",
    "cpu_queue",
    "pending",
    "unreservable",
}  # compared another way, or no part of what is known
FIELDS = [field.name for field in fields(State) if field.name not in UNLIKE]
Nodes = list[tuple[int, str, int]]
Steps = list[tuple[str, int, int]]


class Story(Checked):
    """Turns drawn steps into inputs that fit the cluster's state."""

    def __init__(self, policy: tuple[str, str], nodes: Nodes) -> None:
        order, reservation = policy
        told = SchedulerSettings(order=order, reservation=reservation, reserve_after_minutes=5)  # type: ignore[arg-type]
        super().__init__(told, thorough=False)
        self.replica, self.folded = self.decider.initial(), 0
        self.repeat: Callable[[], list[Event]] = list
        self.jobs = 0
        for index, name in enumerate(TEAMS):
            self._team(name, 24 - index, 4 * index)
        self.hosts = {f"n{number}": row(*drawn) for number, drawn in enumerate(nodes)}
        self.lives = dict.fromkeys(self.hosts, 1)
        for name in self.hosts:
            self._join(name)

    def step(self, kind: str, a: int, b: int) -> None:
        """One step, and all that must hold after it."""
        self.repeat = list
        getattr(self, f"_do_{kind}")(a, b)
        assert self.repeat() == [], f"{kind}: decided twice"
        derived = consistent(self.state)
        assert not derived, "; ".join(derived)
        self._follow()

    def give(self, event: Event, *, ce_id: str | None = None) -> list[Event]:
        """Remember it, to give it again."""
        decided = super().give(event, ce_id=ce_id)
        self.repeat = lambda: super(Story, self).give(event)
        return decided

    def _follow(self) -> None:
        """The replica folds what was written since, as it is read from the bus."""
        for decision, at in self.log[self.folded :]:
            event = event_types()[decision.event.type].decode(decision.event.encode())
            self.replica = self.decider.evolve(self.replica, Decision(decision.subject, event), at)
        self.folded = len(self.log)
        for name in FIELDS:
            assert getattr(self.replica, name) == getattr(self.state, name), f"{name} differ"
        assert list(self.replica.pending) == list(self.state.pending)

    def _some(self, a: int, part: int = 3) -> Iterator[str]:
        """One of `part` of the live jobs."""
        live = [*self.state.live, *self.state.cpu_live]
        return (job_id for job_id in live[a % part :: part] if self._runs(job_id))

    def _runs(self, job_id: str) -> bool:
        return job_id in self.state.live or job_id in self.state.cpu_live

    def _one(self, a: int) -> str | None:
        active = sorted(self.state.jobs)
        return active[a % len(active)] if active else None

    def _host(self, a: int) -> str:
        return f"n{a % len(self.hosts)}"

    # --- jobs ---

    def _do_submit(self, a: int, b: int) -> None:
        for number in range(1 + a % 5):
            self.jobs += 1
            wanted = shape(a * 7 + number * 13, b * 5 + number)
            event = {"job_id": f"j{self.jobs}", "user": "u", "submitted_at": self.now}
            self.give(JobAdmitted.model_validate(event | {"spec": job_spec(wanted)}))

    def _do_prepare(self, a: int, b: int) -> None:
        for number in range(1 + a % 3):
            self.jobs += 1
            wanted = JobRow(
                cpus=(0.5, 1, 4, 8, 20)[(a + number) % 5],
                memory_gb=(1, 8, 600)[b % 3],
                nodes=(1, 1, 1, 2, 3)[(b + number) % 5],
                team=TEAMS[1 + b % 3],
                priority=(5, 50, 90)[a % 3],
                limit="6 h" if b % 5 == 4 else None,  # type: ignore[arg-type]
                grace="10 s",  # type: ignore[arg-type]
            )
            event = {"job_id": f"j{self.jobs}", "user": "u", "submitted_at": self.now}
            self.give(JobAdmitted.model_validate(event | {"spec": job_spec(wanted)}))

    def _do_report(self, a: int, _: int) -> None:
        for job_id in self._some(a, 2):
            gang = self.job(job_id).gang
            if gang is not None and Member.UNSEEN in gang.members:
                self.start(job_id)

    def _do_finish(self, a: int, _: int) -> None:
        for job_id in self._some(a):
            self.start(job_id)
            self.exit(job_id)

    def _do_gone(self, _: int, __: int) -> None:
        for job_id in [*self.state.live, *self.state.cpu_live]:
            gang = self.job(job_id).gang
            if gang is not None and gang.stop is not None:
                self.exit(job_id, ExitReason.STOPPED)

    def _do_save(self, a: int, b: int) -> None:
        for job_id in self._some(a, 2):
            self.commit(job_id, b, self.job(job_id).attempt)

    def _do_fail(self, a: int, b: int) -> None:
        for job_id in self._some(a, 8):
            self.fail(job_id, avoid=(self._host(b),))

    def _do_node_fail(self, a: int, b: int) -> None:
        for job_id in self._some(a, 8):
            self.fail(job_id, cause=FailureCause.NODE, avoid=(self._host(b),))

    def _do_final(self, a: int, _: int) -> None:
        for job_id in self._some(a, 8):
            self.fail(job_id, action="fail")

    def _do_cancel(self, a: int, _: int) -> None:
        if (job_id := self._one(a)) is not None:
            self.cancel(job_id)

    def _do_restore(self, a: int, b: int) -> None:
        if (job_id := self._one(a)) is not None:
            self.restore(job_id, b)

    def _do_priority(self, a: int, b: int) -> None:
        if (job_id := self._one(a)) is not None:
            self.prioritize(job_id, b)

    # --- nodes ---

    def _join(self, name: str) -> None:
        cpus = max(1, self.hosts[name].cpus - 3 * (self.lives[name] % 4 == 3))
        changed = {"incarnation": f"i{self.lives[name]}", "cpus": cpus}
        life = self.hosts[name].model_copy(update=changed)
        self.give(NodeJoined(node=node_info(name, life)))

    def _do_rejoin(self, a: int, _: int) -> None:
        self.lives[self._host(a)] += 1
        self._join(self._host(a))

    def _do_silent(self, a: int, _: int) -> None:
        name = self._host(a)
        life = f"i{self.lives[name]}"
        self.give(NodeFailed(node_id=name, incarnation=life, reason="silent"))

    def _do_recover(self, a: int, _: int) -> None:
        name = self._host(a)
        life = f"i{self.lives[name]}"
        self.give(NodeRecovered(node_id=name, incarnation=life, was="failed"))

    def _do_leave(self, a: int, _: int) -> None:
        self.leave(self._host(a), f"i{self.lives[self._host(a)]}")

    def _do_drain(self, a: int, _: int) -> None:
        self.give(DrainAdmitted(node_id=self._host(a), drain=True, user="u"))

    def _do_cordon(self, a: int, _: int) -> None:
        self.give(DrainAdmitted(node_id=self._host(a), drain=True, move_jobs=False, user="u"))

    def _do_undrain(self, a: int, _: int) -> None:
        for name in self.hosts:
            self.give(DrainAdmitted(node_id=name, drain=False, user="u"))

    # --- teams ---

    def _team(self, name: str, a: int, b: int, **more: object) -> None:
        limit = min(a, 40)
        data: dict[str, object] = {
            "team": name,
            "gpu_limit": limit,
            "cpu_limit": (None, 8.0, 40.0)[a % 3],
            "gpu_guarantee": min(limit, b // 4),
            "borrow_limit": b % 9,
            "weight": 1 + b % 3,
            "parent": PARENTS[name],
            "gpu_types": {"h100": max(1, limit // 2), "a100": None} if b % 7 == 6 else [],
        }
        self.give(TeamConfigured(config=TeamConfig.model_validate(data | more)))

    def _do_team(self, a: int, b: int) -> None:
        self._team(TEAMS[b % 4], a, b)

    def _do_move(self, a: int, b: int) -> None:
        self._team("nlp", a, b, parent=(None, "lab", "asr")[b % 3])

    def _do_spent(self, a: int, b: int) -> None:
        flip = {"team": TEAMS[a % 4], "month": "2026-11", "exhausted": b % 3 == 0}
        self.give(TeamBudgetChanged.model_validate(flip | {"spent_gpu_hours": 1}))

    # --- time ---

    def _do_tick(self, a: int, _: int) -> None:
        self.tick(a)

    def _do_minutes(self, a: int, _: int) -> None:
        self.tick(60 * a)

    def _do_hours(self, a: int, _: int) -> None:
        self.tick(3600 * a)

    def _do_settle(self, _: int, __: int) -> None:
        """With nothing new there is soon nothing to decide."""
        for _ in range(SETTLED):
            if not self.tick():
                return
        raise AssertionError(f"still deciding after {SETTLED} ticks at one time")


def row(gpus: int, model: str, place: int) -> NodeRow:
    """A node of this size somewhere: 2 blocks, 4 racks, 6 NVLink domains."""
    return NodeRow(
        gpus=gpus,
        model={"h100": gpus // 2, "a100": gpus - gpus // 2} if model == "mixed" else model,
        rack=f"r{place // 3}",
        block=f"b{place // 6}",
        labels={"nvlink": f"d{place // 2}"},
        cpus=4 * gpus + place + 1,
    )


def shape(a: int, b: int) -> JobRow:
    """A job of these numbers, small ones more often."""
    gpus = (1, 1, 1, 2, 2, 3, 4, 6, 8, 12)[a % 10]
    each = (1, 2, 1, 3, 1)[(a + b) % 5]
    each = each if gpus % each == 0 else 1
    least = each * (1 + gpus // each // 3) if a % 4 == 3 else None
    counts = None if least is None else {least, *range(least, gpus, each * (1 + b % 4)), gpus}
    hours = (None, 0.2, 1, 1, 5, 30)[b % 6]
    return JobRow(
        gpus=gpus,
        gpus_per_worker=each if each > 1 else None,
        min_gpus=least,
        gpu_counts=sorted(counts) if counts and b % 3 else None,
        team=TEAMS[1 + b % 3],
        priority=(5, 15, 40, 50, 50, 60, 90)[a % 7],
        preemptible=b % 2 == 0,
        models=MODELS[(a + b) % 6],
        cpus_per_gpu=(1, 1, 4, 6)[b % 4],
        within=WITHIN[(a // 3) % 8],
        expected=None if hours is None else f"{hours} h",  # type: ignore[arg-type]
        limit="6 h" if b % 5 == 4 else None,  # type: ignore[arg-type]
        grace="10 s",  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("policy", POLICIES, ids="-".join)
def test_whatever_happens_the_invariants_hold_and_the_log_replays(policy: tuple[str, str]) -> None:
    made = 0

    @settings(
        max_examples=EXAMPLES,
        phases=PHASES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(
        nodes=st.lists(NODE, min_size=2, max_size=8),
        steps=st.lists(STEP, min_size=40, max_size=80),
    )
    def stories(nodes: Nodes, steps: Steps) -> None:
        nonlocal made
        story = Story(policy, nodes)
        for step in steps:
            story.step(*step)
        story.folds_to_the_same()
        made += len(story.log)

    for number in count(FIRST):
        seed(number)(stories)()
        if made >= DECISIONS / len(POLICIES):
            break
