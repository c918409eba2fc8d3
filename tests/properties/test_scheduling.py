"""Whatever happens, in whatever order: the invariants hold, the log replays, and jobs end.

Chaos: jobs, ranks, failures, cancels, restores, nodes that come and go, time, repeated and
outdated reports. Then everything heals, the ranks finish, and every job must end exactly once.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_bus.decision import Tick
from gangline_scheduler.core.invariants import consistent
from gangline_scheduler.core.snapshot import fingerprint
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import (
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointSaved,
)
from gangline_schemas.events.faults import FailureCause, GangFailed, NodeFailed, NodeRecovered
from gangline_schemas.events.quota import (
    CancelAdmitted,
    DrainAdmitted,
    JobAdmitted,
    PriorityAdmitted,
    RestoreAdmitted,
    TeamConfigured,
)
from gangline_schemas.events.scheduling import GangAllocated, JobStateChanged
from gangline_schemas.events.workers import (
    ExitReason,
    NodeInfo,
    NodeJoined,
    NodeLeaving,
    WorkerExited,
    WorkerStarted,
)
from support.builders.deciding import every, team
from support.builders.scheduler import TERMINAL, Cluster, node

NODES = 3
GPUS = 2
OLDER, NEWER = "0.2.0", "0.3.0"
"""Releases of agents: gangs are kept off the older one."""
ROUNDS = 200
STEP = st.tuples(
    st.sampled_from(
        """submit submit run run start exit done stopped fail node_fail final cancel restore
        commit commit delete priority join rejoin leave silent recover drain cordon undrain team
        tick tick long save save nodes nodes reload outdated outdated""".split()  # noqa: SIM905 - the weights stay readable
    ),
    st.integers(0, 7),
    st.integers(0, 7),
)


class Story:
    """Turns drawn steps into events that fit the cluster's state, and checks after each."""

    def __init__(self) -> None:
        self.incarnations = dict.fromkeys(range(NODES), 1)
        self.releases = dict.fromkeys(range(NODES), NEWER)
        self.cluster = Cluster(*(self._node(i) for i in range(NODES)), oldest_agents=NEWER)
        self.cluster.give(TeamConfigured(config=team("cv", limit=64, guarantee=NODES)))
        self.given: list[Event] = []
        self.jobs = 0

    def step(self, kind: str, a: int, b: int) -> None:
        if kind in {"tick", "long"}:
            self.cluster.tick(seconds=3600 * b if kind == "long" else 7 * b)
        elif kind == "outdated":
            self._outdated(a * 8 + b)
        elif kind == "save":
            self._save(a)
        elif kind in {"run", "done"}:
            job_id = self._chosen(a)
            if job_id is not None and kind == "run":
                self.cluster.start(job_id)
            elif job_id is not None and self.cluster.job(job_id).gang is not None:
                self.cluster.exit(job_id)
        else:
            event = self._event(kind, a, b)
            if event is not None:
                self.given.append(event)
                self._give(event)
                assert self.cluster.give(event) == [], f"{kind} counted twice"
        assert consistent(self.cluster.state) == []

    def _chosen(self, a: int) -> str | None:
        active = sorted(self.cluster.state.jobs)
        return active[a % len(active)] if active else None

    def _save(self, a: int) -> None:
        """A live gang saves its next step, which makes it move from draining nodes, or grow."""
        job_id = self._chosen(a)
        if job_id is not None and (job := self.cluster.job(job_id)).gang is not None:
            newest = job.checkpoints[-1].step if job.checkpoints else 0
            self.cluster.commit(job_id, newest + 1, attempt=job.attempt)

    def _outdated(self, number: int) -> None:
        """Anything that was given before comes again; reports of older attempts do nothing."""
        if not self.given:
            return
        event = self.given[number % len(self.given)]
        attempts = {job_id: job.attempt for job_id, job in self.cluster.state.jobs.items()}
        decided = self._give(event)
        if isinstance(event, WorkerStarted | WorkerExited | GangFailed):
            assert decided == [] or event.attempt >= attempts.get(event.job_id, 0)
        if isinstance(event, NodeJoined):
            newest = self.cluster.state.nodes[event.node.node_id].info.incarnation
            assert newest == f"i{self.incarnations[int(event.node.node_id[1:])]}"

    def _event(self, kind: str, a: int, b: int) -> Event | None:
        if kind == "team":
            config = team("nlp", limit=a, guarantee=min(a, b), borrow=b % 3)
            return TeamConfigured(config=config)
        return self._job_event(kind, a, b) or self._node_event(kind, a % NODES)

    def _give(self, event: Event) -> list[Event]:
        before = fingerprint(self.cluster.state)
        self.cluster.decider.decide(self.cluster.state, None, Tick(), self.cluster.now)
        assert fingerprint(self.cluster.state) == before, "decide changed the state"
        return self.cluster.give(event)

    def _job_event(  # noqa: PLR0911, PLR0912 - one case for each kind
        self, kind: str, a: int, b: int
    ) -> Event | None:
        if kind == "submit":
            self.jobs += 1
            return self._submission(f"j{self.jobs}", a, b)
        job_id = self._chosen(a)
        if job_id is None:
            return None
        job = self.cluster.job(job_id)
        live = {"job_id": job_id, "attempt": max(1, job.attempt)}
        rank = {"rank": b % max(1, job.allocated_gpus), "node_id": "n0", "incarnation": "i1"}
        verdict = {"message": "m", "restarts_used": 0, "restarts_max": 3} | live
        match kind:
            case "start":
                return WorkerStarted.model_validate(live | rank | {"pid": 1})
            case "exit":
                return WorkerExited.model_validate(live | rank | {"reason": ExitReason.FINISHED})
            case "stopped":
                return WorkerExited.model_validate(live | rank | {"reason": ExitReason.STOPPED})
            case "fail" | "node_fail" | "final":
                cause = FailureCause.NODE if kind == "node_fail" else FailureCause.PROCESS
                action = "fail" if kind == "final" else "restart"
                more = {"cause": cause, "action": action, "failed_at": self.cluster.now}
                return GangFailed.model_validate(verdict | more | {"avoid_nodes": (f"n{b % 3}",)})
            case "cancel":
                return CancelAdmitted(job_id=job_id, user="u")
            case "restore":
                return RestoreAdmitted(job_id=job_id, step=b, user="u")
            case "priority":
                return PriorityAdmitted(job_id=job_id, priority=b, user="u")
            case "commit":
                attempt = max(1, job.attempt - (b % 3))
                ref = live | {"step": b, "world_size": 1, "commit_key": "k", "attempt": attempt}
                data = {"job_id": job_id, "checkpoint": ref, "size_bytes": 1, "objects": 1}
                return CheckpointCommitted.model_validate(data)
            case "nodes":
                newest = job.checkpoints[-1].step if job.checkpoints else 0
                whole = {"step": newest + b, "world_size": 1}
                return CheckpointSaved.model_validate(live | whole)
            case "delete":
                return CheckpointDeleted.model_validate(live | {"step": b, "reason": "r"})
            case _:
                return None

    def _submission(self, job_id: str, a: int, b: int) -> JobAdmitted:
        fields: dict[str, object] = {"stop_grace_seconds": 10, "preemptible": b % 3 != 0}
        if b == 7:
            fields["max_runtime_hours"] = 2
        if b == 6 and self.jobs > 1:
            fields["resume_from"] = "j1"
        gpus = 1 + (a + b) % (NODES * GPUS)
        each = 2 if gpus % 2 == 0 and b % 3 else 1
        need: dict[str, object] = {"gpus": gpus, "gpus_per_worker": each}
        if b % 2:
            need["min_gpus"] = least = each * (1 + a % (gpus // each))
            need["gpu_counts"] = sorted({least, gpus}) if b % 4 == 1 else None
        team = "cv" if a % 2 else "nlp"
        spec_data = {"name": "j", "team": team, "run": "x", "priority": a * 10} | fields
        return JobAdmitted.model_validate(
            {
                "job_id": job_id,
                "spec": spec_data | {"resources": need},
                "user": "u",
                "submitted_at": self.cluster.now,
            }
        )

    def _node_event(  # noqa: PLR0911 - one return for each kind
        self, kind: str, index: int
    ) -> Event | None:
        node_id, now = f"n{index}", f"i{self.incarnations[index]}"
        match kind:
            case "join":
                return NodeJoined(node=self._node(index))
            case "rejoin":
                self.incarnations[index] += 1
                return NodeJoined(node=self._node(index))
            case "reload":
                self.releases[index] = OLDER if self.releases[index] == NEWER else NEWER
                return NodeJoined(node=self._node(index))
            case "leave":
                return NodeLeaving(node_id=node_id, incarnation=now, reason="r")
            case "silent":
                return NodeFailed(node_id=node_id, incarnation=now, reason="silent")
            case "recover":
                return NodeRecovered(node_id=node_id, incarnation=now, was="failed")
            case "drain" | "cordon" | "undrain":
                on, move = kind != "undrain", kind == "drain"
                return DrainAdmitted(node_id=node_id, drain=on, move_jobs=move, user="u")
            case _:
                return None

    def _node(self, index: int) -> NodeInfo:
        return node(
            f"n{index}", GPUS, rack=f"r{index % 2}", incarnation=f"i{self.incarnations[index]}",
            release=self.releases[index],
        )  # fmt: skip

    def heal(self) -> None:
        """Nodes come back, limits are wide, ranks finish; gangs that were asked to stop hang."""
        self._give(TeamConfigured(config=team("nlp", limit=64)))
        self.releases = dict.fromkeys(range(NODES), NEWER)
        for index in range(NODES):
            for kind in ("rejoin", "undrain"):
                event = self._node_event(kind, index)
                assert event is not None
                self._give(event)
        for _ in range(ROUNDS):
            self.cluster.tick(seconds=60)
            for job_id in list(self.cluster.state.live):
                gang = self.cluster.job(job_id).gang
                if gang is not None and gang.stop is None:
                    self.cluster.start(job_id)
                    self.cluster.exit(job_id)
            if not self.cluster.state.jobs:
                return


def tell(steps: list[tuple[str, int, int]]) -> Story:
    story = Story()
    for kind, a, b in steps:
        story.step(kind, a, b)
    return story


@settings(max_examples=70, deadline=None)
@given(steps=st.lists(STEP, min_size=10, max_size=80))
def test_invariants_replay_and_liveness(steps: list[tuple[str, int, int]]) -> None:
    story = tell(steps)
    cluster = story.cluster
    story.heal()

    assert cluster.state.jobs == {}, "every admitted job ends once all is healthy"
    events = [decision.event for decision, _ in cluster.log]
    ends = Counter(e.job_id for e in every(events, JobStateChanged) if e.state in TERMINAL)
    assert ends == Counter({f"j{number + 1}": 1 for number in range(story.jobs)})
    attempts: dict[str, int] = {}
    for gang in every(events, GangAllocated):
        assert gang.attempt == attempts.get(gang.job_id, 0) + 1
        attempts[gang.job_id] = gang.attempt
    assert fingerprint(cluster.replayed()) == fingerprint(cluster.state)


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(STEP, max_size=40))
def test_the_log_folds_to_the_live_state_at_any_time(
    steps: list[tuple[str, int, int]],
) -> None:
    cluster = tell(steps).cluster

    assert fingerprint(cluster.replayed()) == fingerprint(cluster.state)
