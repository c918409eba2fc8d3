"""What happened in a simulated cluster, and how things stood before each of its events.

The logs of a few simulated runs (tests/gangsim) are folded by the production code up to an event;
there, that event is given again in another form. Types that never occur in these runs are taken
from schemas/examples and put into a moment at which a gang trains, under that gang's names.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from gangline_bus.codec import Received, UndecodableError, receive
from gangline_bus.decision import Decision, Recalling
from gangline_gateway.live import Live
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, event_types
from gangline_schemas.events.scheduling import GangAllocated
from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.generate import ROOT
from gangline_schemas.pipeline_file import PipelineSpec
from gangline_schemas.study_file import StudySpec
from gangsim.draw import draw
from gangsim.parts import Parts
from gangsim.world import World

from .readers import DECIDERS, deciders

SEEDS = (2001, 2002, 2005)
MOST_AFTER = 4
_ONE_SIZE: dict[str, Any] = {
    "name": "x",
    "run": "python train.py",
    "resources": {"workers": 1, "gpus_per_worker": 2},
    "parallel": {"replicas": 1, "shard": 1, "tensor": 2},
    "training": {"on_nan": {"skip": 1}, "on_spike": {"then": "restart"}, "leave_out": {}},
    "checkpoint": {"incremental": {"full_every": 3}, "promote": "final"},
}
_NO_GPUS: dict[str, Any] = {
    "name": "x",
    "run": "python prepare.py",
    "resources": {"gpus": 0, "cpus": 2, "memory_gb": 1, "nodes": 2},
}
_TOPICS = {topic.value: topic for topic in Topic}


@dataclass(frozen=True, slots=True)
class EventCase:
    """A type's event in raw data, and the readers before it, pickled: a copy is a load.

    `gang` is one that trains there on `node`, None where there is none. `after` is what came next
    on the streams, and how many seconds after it.
    """

    data: Mapping[str, Any]
    subject: str
    now: datetime
    states: Mapping[str, bytes]
    live: bytes
    gang: GangAllocated | None
    node: NodeInfo | None
    after: tuple[tuple[float, Event, str], ...] = ()


@cache
def event_cases() -> dict[str, EventCase]:
    """One for each published type."""
    found: dict[str, EventCase] = {}
    training: EventCase | None = None
    for seed in SEEDS:
        records = _records(seed)
        moments = _moments(records, found)
        for case, name in _fold(records, moments):
            if name is None:
                training = training or case
            else:
                found.setdefault(name, case)
    assert training is not None
    for name in event_types():
        if name not in found:
            found[name] = _transplanted(name, training)
    return found


def forms(name: str) -> list[dict[str, Any]]:
    """The data that is varied: as it happened, and with specs that say more than simulated ones."""
    data = dict(event_cases()[name].data)
    if name == "worker.heartbeat":
        return [data, _beat(event_cases()[name])]
    if name in _OTHERS:
        return [data, {**data, **_OTHERS[name]}]
    spec_of = event_types()[name].model_fields.get("spec")
    if spec_of is None:
        return [data]
    specs = FILES.get(spec_of.annotation, SPECS)
    team = data.get("team", data.get("spec", {}).get("team", "red"))
    return [data, *({**data, "spec": {**spec, "team": team}} for spec in specs)]


def _beat(case: EventCase) -> dict[str, Any]:
    """A heartbeat of a node on which three ranks of the gang train alike."""
    assert case.gang is not None
    gang = case.gang
    status = {"pid": 7, "step": 20, "activity": "training", "quiet_s": 0.1, "step_p99_s": 1.0}
    ranks = [{"rank": rank, "busy_s": 1.0, **status} for rank in range(3)]
    told = {"job_id": gang.job_id, "attempt": gang.attempt, "ranks": ranks}
    here = {"node_id": gang.nodes[0].node_id, "incarnation": gang.nodes[0].incarnation}
    return {**case.data, **here, "gangs": [told]}


def example(name: str) -> dict[str, Any]:
    """The golden example of a type."""
    data: dict[str, Any] = json.loads((ROOT / "examples" / f"{name}.json").read_text())
    return data


SPECS = (example("job.submitted")["spec"], _ONE_SIZE, _NO_GPUS)
_JOB = {"run": "true", "resources": {"gpus": 1}}
_STUDY: dict[str, Any] = {
    "name": "x",
    "objective": {"metric": "loss"},
    "constraints": [{"metric": "speed", "min": 1.0}],
    "space": {
        "lr": {"type": "float", "low": 0.0, "high": 1.0, "step": 0.5},
        "net": {"type": "choice", "values": ["a", 1, None]},
    },
    "start": [{"lr": 0.5}],
    "job": _JOB,
}
_PIPELINE: dict[str, Any] = {
    "name": "x",
    "steps": {
        "prepare": {"job": _JOB, "in": {"score": "first.score"}, "when": "first.score > 1"},
        "first": {"job": _JOB, "out": {"score": "score"}},
    },
    "triggers": {"new-text": {"schedule": "0 3 * * *"}},
    "retention": {"days": 7.0, "runs": 3},
}
FILES: Mapping[Any, tuple[dict[str, Any], ...]] = {
    StudySpec: (_STUDY,),
    PipelineSpec: (_PIPELINE, {**_PIPELINE, "triggers": {"new-text": {"drift": "summarizer"}}}),
}
_MEANS = {
    "items": 9, "difference": 0.1, "low": 0.0, "high": 0.2, "resamples": 1000, "seed": 1,
    "confidence": 0.95,
}  # fmt: skip
_OTHERS: Mapping[str, dict[str, Any]] = {
    "model.rollback.requested": {"to": 1},
    "model.version.requested": {"job_id": None, "step": None, "version": 2},
    "evaluation.compared": {
        "comparison": {
            **example("evaluation.compared")["comparison"], "paired": None, "means": _MEANS
        }
    },
}  # fmt: skip
"""Further forms of what their examples leave out."""

_ENTRY = re.compile(r"\.a(\.|$)")
_STEPS = re.compile(r"^spec\.steps\.[^.]+\.(job|study)(\.|$)")


def need_not_be_reached(name: str, place: str) -> bool:
    """Whether no single value has to reach a place of a type.

    A new entry (`a`) of a mapping in a user's file is whole or refused. Jobs and studies of steps
    are varied in types of their own.
    """
    spec_of = event_types()[name].model_fields.get("spec")
    if spec_of is None or spec_of.annotation not in FILES:
        return False
    return bool(_ENTRY.search(place) or _STEPS.match(place))


def _records(seed: int) -> list[tuple[datetime, Received]]:
    world = World(draw(seed), Parts())
    outcome = world.run()
    assert not outcome.violation, outcome.violation
    found = []
    for topic in Topic:
        for record in world.broker.dump(world.names.name(topic)):
            try:
                event = receive(record)
            except UndecodableError:
                continue
            at = datetime.fromtimestamp(record.timestamp_ms / 1000, tz=UTC)
            found.append((at, event))
    return sorted(found, key=lambda item: item[0])


def _moments(
    records: list[tuple[datetime, Received]], found: Mapping[str, EventCase]
) -> dict[int, str | None]:
    """Of each new type a place in the middle; of the whole, one at which a gang has trained."""
    places: dict[str, list[int]] = {}
    for number, (_, event) in enumerate(records):
        places.setdefault(event.envelope.type, []).append(number)
    chosen: dict[int, str | None] = {
        at[len(at) // 2]: name for name, at in places.items() if name not in found
    }
    committed = places.get("checkpoint.committed", ())
    if committed:
        chosen.setdefault(committed[0] + 1, None)
    return chosen


def _fold(
    records: list[tuple[datetime, Received]], moments: Mapping[int, str | None]
) -> list[tuple[EventCase, str | None]]:
    parts = deciders()
    states = {name: parts[name].initial() for name in DECIDERS}
    soft = {name: parts[name].initial_soft() for name in DECIDERS}
    live, gangs, nodes = Live(), {}, {}
    found = []
    for number, (now, received) in enumerate(records):
        event, topic = received.envelope.data, _TOPICS[received.topic]
        # In the middle of a transaction a state need not hold; another seed has another moment.
        if number in moments and not any(parts[n].check(states[n]) for n in DECIDERS):
            gang = next(iter(gangs.values()), None)
            case = EventCase(
                data=_whole(event.type, event.data()),
                subject=received.envelope.subject,
                now=now,
                states={name: pickle.dumps((states[name], soft[name])) for name in states},
                live=pickle.dumps(live),
                gang=gang,
                node=nodes.get(gang.nodes[0].node_id) if gang is not None else None,
                after=_after(records[number + 1 :], now),
            )
            found.append((case, moments[number]))
        live.apply(received.envelope)
        for name, decider in parts.items():
            if decider.log is topic:
                decision = Decision(received.envelope.subject, event)
                states[name] = decider.evolve(states[name], decision, received.envelope.time)
                soft[name] = decider.observe(states[name], soft[name], decision, now)
            elif topic in decider.signals or (
                topic in decider.inputs and isinstance(decider, Recalling)
            ):
                soft[name] = decider.observe(states[name], soft[name], received, now)
        match event.type:
            case "node.joined":
                nodes[event.node.node_id] = event.node  # type: ignore[attr-defined]
            case "gang.allocated":
                gangs[event.job_id] = event  # type: ignore[attr-defined]
            case "gang.released":
                gangs.pop(event.job_id, None)  # type: ignore[attr-defined]
    return found


def _after(
    records: list[tuple[datetime, Received]], now: datetime
) -> tuple[tuple[float, Event, str], ...]:
    """The reports and requests that followed; heartbeats say what is known already."""
    found = []
    for at, received in records:
        if received.topic in {Topic.WORKERS.value, Topic.REQUESTS.value, Topic.ADMIN.value}:
            passed_s = (at - now).total_seconds()
            found.append((passed_s, received.envelope.data, received.envelope.subject))
            if len(found) == MOST_AFTER:
                break
    return tuple(found)


def _whole(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """With the parts that the example has and this event leaves out, where they belong to it."""
    more = {**example(name), **data}
    try:
        event_types()[name].decode(json.dumps(more))
    except ValueError:
        return data
    return more


def _transplanted(name: str, at: EventCase) -> EventCase:
    """The golden example of a type, about the gang and the node of a case."""
    data = _renamed(example(name), _names(at))
    subject = str(data.get("job_id") or data.get("node_id") or "subject")
    return replace(at, data=data, subject=subject)


def _names(at: EventCase) -> dict[str, Any]:
    assert at.gang is not None
    assert at.node is not None
    return {
        "job_id": at.gang.job_id,
        "run_id": at.gang.job_id,
        "team": at.gang.team,
        "attempt": at.gang.attempt,
        "world_size": at.gang.world_size,
        "node_id": at.node.node_id,
        "incarnation": at.node.incarnation,
        "rank": 0,
    }


def _renamed(data: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(data, list):
        return [_renamed(item, names) for item in data]
    if isinstance(data, dict):
        return {
            key: names[key]
            if key in names and not isinstance(value, dict | list)
            else _renamed(value, names)
            for key, value in data.items()
        }
    return data
