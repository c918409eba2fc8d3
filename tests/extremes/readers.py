"""All readers of events, driven as production drives it, with what must hold afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from gangline_alerts.core.model import Deliver, Delivered
from gangline_bus.codec import Received, encode, receive
from gangline_bus.decision import Decider, Decision, EffectDone, Input, Observed, Recalling, Tick
from gangline_bus.ports import Record
from gangline_bus.state_json import DataclassCodec
from gangline_checkpoints.core.model import Delete, Removed, Scrub, Scrubbed, Verified
from gangline_gateway import gang_heartbeats, present
from gangline_gateway.followed import Copies
from gangline_gateway.live import Live
from gangline_gateway.live_view import LiveView
from gangline_gateway.view_snapshot import View
from gangline_pipelines.core.model import Checked, CheckOutputs, Deleted, DeleteOutputs
from gangline_registry.core.model import (
    Compare,
    CompareProfiles,
    Failed,
    Made,
    MakeVersion,
    ProfilesCompared,
    Project,
    Projected,
)
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, catalog, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.heartbeats import WorkerHeartbeat
from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.study_space import ChoiceParameter, Parameter, Value
from gangline_studies.core.suggesting import Ask, Suggestion
from gangline_tracker.batches import HeartbeatBatch, LogBatch, StepBatch
from gangline_tracker.event_batch import EventBatch
from gangline_tracker.runs import Run
from gangline_tracker.views.runs import Runs
from support.deciders import DECIDERS

LATER_S = (0.5, 10.0, 10.0, 10.0, 10.0, 1900.0, 90_000.0)
"""Ticks after an event: at once, past a straggler's spell, half an hour, a day."""
MOST_EVENTS = 3000
"""So many may follow from one event, over all services and all ticks: a fan-out has 500 items."""
ODD = "\x01\n\u202e'); DROP TABLE x; --" + "\N{GRINNING FACE}" * 230
"""The end of an id and of a source: nearly as long as they may be."""
CPU_S = 1.0
"""A guard, far above what any input takes: no single one may hold up a service."""


@cache
def deciders() -> dict[str, Decider[Any, Any]]:
    """One of each, as production makes them."""
    return {name: known.make() for name, known in DECIDERS.items()}


@cache
def codecs() -> dict[str, DataclassCodec[Any]]:
    """How the states are kept in snapshots."""
    return {name: known.codec() for name, known in DECIDERS.items()}


_READ_EVERY_S = CPU_S / 100
_last_read = [0.0, 0.0]


class Cost(AssertionError):
    """One input took too much."""


@contextmanager
def bounded() -> Any:
    """What is done within costs less than `CPU_S` of this thread, or a hundredth more.

    A thread's CPU time takes a system call. It is read for blocks that are long by the clock, and
    before a block at most each `_READ_EVERY_S`: an earlier reading is less.
    """
    began_s = time.perf_counter()
    if began_s - _last_read[0] > _READ_EVERY_S:
        _last_read[:] = [began_s, time.thread_time()]
    before_s = _last_read[1]
    yield
    if time.perf_counter() - began_s > CPU_S:
        took_s = time.thread_time() - before_s
        if took_s > CPU_S + _READ_EVERY_S:
            raise Cost(f"took {took_s:.1f} s of CPU")


class Services:
    """All deciders from one moment on, each with what the others decide."""

    def __init__(self, states: Mapping[str, tuple[Any, Any]], now: datetime) -> None:
        self.states = {name: state for name, (state, _) in states.items()}
        self.soft = {name: soft for name, (_, soft) in states.items()}
        self.now = now
        self.logs: dict[str, list[tuple[Decision, datetime]]] = {name: [] for name in self.states}
        self.said: list[Received] = []
        self._offset = 10**6
        self._decided = 0

    def hear(self, event: Event, subject: str) -> None:
        """An event stands on its topic; what follows from it, and from that, in all services."""
        waiting = [self._received(event, subject)]
        while waiting:
            received = waiting.pop(0)
            self.said.append(received)
            topic = Topic(received.topic)
            for name, decider in deciders().items():
                if topic in decider.signals:
                    self._observe(name, received)
                elif topic in decider.inputs:
                    waiting += self._take(name, received)
                    if isinstance(decider, Recalling):
                        self._observe(name, received)

    def pass_time(self, seconds: float, again: tuple[Event, str] | None = None) -> None:
        """Time passes; effects are done, each service ticks. A signal comes `again` first."""
        self.now += timedelta(seconds=seconds)
        if again is not None:
            self.hear(*again)
        for name, decider in deciders().items():
            items: list[Input] = [
                EffectDone(key, _done(effect))
                for key, effect in decider.effects(self.states[name], self.soft[name]).items()
            ]
            for item in (*items, Tick()):
                if isinstance(item, Tick):
                    self._observe(name, item)
                for received in self._take(name, item):
                    self._deliver(received)

    def _observe(self, name: str, observed: Observed) -> None:
        decider = deciders()[name]
        self.soft[name] = decider.observe(self.states[name], self.soft[name], observed, self.now)

    def _deliver(self, received: Received) -> None:
        self.hear(received.envelope.data, received.envelope.subject)

    def _take(self, name: str, item: Input) -> list[Received]:
        decider = deciders()[name]
        with bounded():
            decisions = decider.decide(self.states[name], self.soft[name], item, self.now)
        self._decided += len(decisions)
        assert self._decided <= MOST_EVENTS, "one event leads to more and more"
        found = []
        for decision in decisions:
            received = self._received(decision.event, decision.subject)
            assert received.envelope.data == decision.event, "it is read as another event"
            self.states[name] = decider.evolve(self.states[name], decision, self.now)
            self.logs[name].append((decision, self.now))
            self._observe(name, decision)
            found.append(received)
        if decisions:
            assert decider.check(self.states[name]) == []
        return found

    def _received(self, event: Event, subject: str) -> Received:
        """As it is read from the bus: through its bytes. Many may write a stream, with any id."""
        self._offset += 1
        topic = topic_of(event.type).value
        odd = ODD if catalog()[Topic(topic)].kind == "stream" else ""
        envelope = Envelope(f"id-{self._offset}{odd}", f"/t{odd}", self.now, subject, event)
        sent = encode(envelope, topic=topic)
        at_ms = int(self.now.timestamp() * 1000)
        return receive(Record(topic, 0, self._offset, sent.key, sent.value, sent.headers, at_ms))


def _done(effect: object) -> object:
    """A good outcome of an effect."""
    if isinstance(effect, Ask):
        values = {name: _least(one) for name, one in effect.spec.space.items() if not one.when}
        return Suggestion(effect.study_id, effect.number, values, "random", effect.results)
    return _OUTCOMES.get(type(effect), Verified(2, 3, 0.1))


_OUTCOMES: Mapping[type, object] = {
    Delete: Removed(0),
    Deliver: Delivered(0.1, "HTTP 200"),
    Scrub: Scrubbed(1, 0.1),
    CheckOutputs: Checked(()),
    DeleteOutputs: Deleted(1, 2, 3),
    MakeVersion: Made(7),
    Compare: Failed("the scores are damaged", final=True),
    CompareProfiles: ProfilesCompared(()),
    Project: Projected(),
}


def _least(one: Parameter) -> Value:
    return one.values[0] if isinstance(one, ChoiceParameter) else one.low


def check_replay(
    name: str, before: Any, after: Any, log: Iterable[tuple[Decision, datetime]]
) -> None:
    """The log that was written folds to the state that lived, and so does its snapshot."""
    decider, codec, fingerprint = deciders()[name], codecs()[name], DECIDERS[name].fingerprint
    for decision, at in log:
        event = type(decision.event).decode(decision.event.encode())
        before = decider.evolve(before, Decision(decision.subject, event), at)
    lived = fingerprint(after)
    assert fingerprint(before) == lived, f"{name}: replay differs from live"
    kept = codec.load(codec.dump(codec.copy(after)))
    assert fingerprint(kept) == lived, f"{name}: its snapshot is another state"


@cache
def _view_codec() -> DataclassCodec[View]:
    return DataclassCodec(View)


def check_gateway(live: Live, services: Services) -> None:
    """The gateway folds what was said, answers from it, and keeps it in a snapshot."""
    with bounded():
        for received in services.said:
            event = received.envelope.data
            if isinstance(event, WorkerHeartbeat):
                live.take_heartbeat(event.node_id, received.envelope.time, event.encode())
            live.apply(received.envelope)
        states = (Copies([services.states[name]]) for name in ("scheduler", "quota"))
        for answer in _answers(LiveView(live, *states), services.now):
            shown = _answer_adapter(type(answer))
            shown.validate_json(shown.dump_json(answer))
    view = View(**vars(live.facts()), marks={})
    codec = _view_codec()
    assert codec.load(codec.dump(codec.copy(view))) == view


@cache
def _answer_adapter(kind: type) -> TypeAdapter[object]:
    return TypeAdapter(kind)


def _answers(view: LiveView, now: datetime) -> Iterable[object]:
    for one in view.newest_first():
        found = view.details(one.job_id)
        assert found is not None
        yield present.summary(found, now)
        yield present.job(found, now, gang_heartbeats.of_gang(view, found, now))
        yield present.explain(view, found, None, now)
        yield from present.checkpoints(found)
    for node in filter(None, map(view.node, view.nodes)):
        yield present.node(view, node, None)


class Rows:
    """Runs that no table knows yet."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}

    def find(self, jobs: Iterable[str]) -> Mapping[str, Run]:
        """Those that are known."""
        return {job: self._runs[job] for job in jobs if job in self._runs}

    def models(self) -> dict[str, str]:
        return {}

    def keep(self, runs: Iterable[Run]) -> None:
        """For the next batch."""
        self._runs.update({run.job_id: run for run in runs})


def check_tracker(said: Iterable[Received], now: datetime) -> None:
    """The tracker makes rows of what was said, and live figures of its steps."""
    batches: dict[str, Any] = {
        Topic.STEPS.value: StepBatch(),
        Topic.LOGS.value: LogBatch(),
        Topic.HEARTBEATS.value: HeartbeatBatch(),
    }
    now_ms = int(now.timestamp() * 1000)
    events, runs = EventBatch(Rows()), Runs(now_ms, limit=100)
    with bounded():
        for received in said:
            batches.get(received.topic, events).add(received)
            if isinstance(received.envelope.data, WorkerStep):
                runs.note(received.envelope.data, now_ms)
        for batch in (*batches.values(), events):
            for insert in batch.inserts(now):
                insert.rows.validate(full=True)
        for progress in runs.due(now_ms):
            RunProgress.decode(progress.encode())
