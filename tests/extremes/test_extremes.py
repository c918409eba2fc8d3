"""Every field of every event at its least and most, through all its readers.

What a schema lets in, all its readers can bear: no exception, no broken invariant, no input that
costs much, no state that a replay or a snapshot gives back otherwise. The fields and the values
come from the schemas (values.py), the moments from simulated runs (story.py).
"""

from __future__ import annotations

import json
import os
import pickle
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, event_types, topic_of

from .agents import Agent
from .readers import LATER_S, Services, bounded, check_gateway, check_replay, check_tracker
from .story import EventCase, event_cases, forms, need_not_be_reached
from .values import Field, copy_value, fields, in_place, marked, present_value, raw_values

SOAK = int(os.environ.get("GANGLINE_EXTREMES", "0"))
"""So many events of each type have several extreme fields, and no value is left out; 0: `FEW`."""
FEW, MOST, VALUES = 1, 3, 8
"""Without a soak: a type's mixed events, its events in all, and the values of one field.

Of a field of which none of so many values is let in, the others are tried until one is.
"""
MOST_ERRORS = 20
SEED = int(os.environ.get("GANGLINE_EXTREMES_SEED", "1"))


@dataclass
class Tried:
    """What became of one type's fields: the events that its schema lets in, by field, each once.

    `unreached` are the fields that no event had.
    """

    events: dict[str, list[Event]] = field(default_factory=dict)
    unreached: set[str] = field(default_factory=set)


def tried(name: str) -> Tried:
    """Put all that is tried into every field of every form of a type."""
    model, document = event_types()[name], event_types()[name].model_json_schema(by_alias=False)
    found, known, reached = Tried(), set[bytes](), set[str]()
    random = Random(f"{SEED}/{name}/values")
    for data in forms(name):
        for place in fields(document, data):
            present = present_value(data, place.path)
            if present is not None:
                reached.add(place.name)
            if not need_not_be_reached(name, place.name):
                found.unreached.add(place.name)
            values = list(raw_values(document, place, present))
            if not SOAK:
                random.shuffle(values)
            document_with_mark = marked(document, data, place)
            for number, raw in enumerate(values):
                if not SOAK and number >= VALUES and place.name in reached & found.events.keys():
                    break
                event = _read(model, in_place(document_with_mark, raw), place)
                if event is None:
                    continue
                if raw != "null":
                    reached.add(place.name)
                if (written := event.encode()) not in known:
                    known.add(written)
                    found.events.setdefault(place.name, []).append(event)
    found.unreached -= reached
    return found


def mixed(tried: Tried, random: Random, count: int) -> Iterator[Event]:
    """Events in which several fields are extreme at once."""
    every = [(name, event) for name, events in tried.events.items() for event in events]
    for _ in range(count if every else 0):
        data = random.choice(every)[1].data()
        for name, other in random.choices(every, k=random.randint(2, 12)):
            copy_value(other.data(), data, name.split("."))
        try:
            yield type(every[0][1]).decode(json.dumps(data))
        except ValidationError:
            continue


def _read(model: type[Event], text: str, place: Field) -> Event | None:
    try:
        with bounded():
            return model.decode(text)
    except ValidationError as error:
        if error.error_count() > MOST_ERRORS:
            raise AssertionError(
                f"{place.name}: {error.error_count()} errors of one value"
            ) from None
        return None


def states_of(case: EventCase) -> dict[str, tuple[Any, Any]]:
    """The deciders' states and soft states at a moment, each a copy."""
    return {name: pickle.loads(data) for name, data in case.states.items()}


def drive(event: Event, case: EventCase) -> None:
    """Give one event to everybody at its moment, and let time pass."""
    services = Services(states_of(case), case.now)
    again = (event, case.subject) if topic_of(event.type) is Topic.HEARTBEATS else None
    services.hear(event, case.subject)
    passed_s = 0.0
    for after_s, later, subject in case.after:
        services.pass_time(max(0.0, after_s - passed_s), again)
        services.hear(later, subject)
        passed_s = after_s
    for seconds in LATER_S:
        services.pass_time(seconds, again)
    for name, (before, _) in states_of(case).items():
        if services.logs[name]:
            check_replay(name, before, services.states[name], services.logs[name])
    if case.gang is not None and case.node is not None:
        agent = Agent(case)
        for received in services.said:
            agent.hear(received)
        agent.pass_time(1.0)
        agent.check_handover()
    check_gateway(pickle.loads(case.live), services)
    check_tracker(services.said, services.now)
    if find_spec("mlflow") is not None:
        from .mlflow_runs import check_mlflow

        check_mlflow(services.said)


@pytest.mark.parametrize("name", sorted(event_types()))
def test_what_a_schema_lets_in_everybody_can_bear(name: str) -> None:
    case, found, wrong = event_cases()[name], tried(name), list[str]()
    assert not found.unreached, "no value was found for these: give `forms` one that has them"
    random = Random(f"{SEED}/{name}")
    events = [(place, event) for place, events in found.events.items() for event in events]
    if not SOAK and len(events) > MOST:
        events = random.sample(events, MOST)
    events += [("many", event) for event in mixed(found, random, SOAK or FEW)]
    for place, event in events:
        try:
            drive(event, case)
        except Exception as error:
            wrong.append(f"{place}: {_where(error)}\n    {event.encode()[:1000]!r}")
    assert not wrong, "\n".join(wrong[:10])


def _where(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {frame.filename}:{frame.lineno}: {str(error)[:300]}"
