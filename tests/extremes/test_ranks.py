"""What a rank's program may say, at its least and most, through its agent and all readers."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from pydantic import ValidationError

from gangline_schemas.rank_protocol import FROM_RANK, FromRank

from .agents import Agent
from .readers import Services, bounded, check_tracker
from .story import event_cases
from .test_extremes import states_of
from .values import example, fields, present_value, raw_values, with_value

DOCUMENT = FROM_RANK.json_schema(by_alias=False)
KINDS: dict[str, dict[str, Any]] = {
    kind: DOCUMENT["$defs"][reference.removeprefix("#/$defs/")]
    for kind, reference in DOCUMENT["discriminator"]["mapping"].items()
}
DIGEST = {"key": "attempt-0001/step-0000000005/rank-00000.bin", "size_bytes": 1, "xxh3": "0" * 32}
FORMS = {
    "shard_ready": {"manifest": DIGEST, "shard": DIGEST, "step": 5, "rank": 0, "world_size": 2},
    "report": {
        "step": [5],
        "time_ms": [1767225700000],
        "metrics": {"loss": [1.5], "busy_s": [0.5]},
    },
    "leave_out": {"left_out": [{"first": 0, "count": 1}]},
}
"""What an example from the schema alone would not say."""


@cache
def messages(kind: str) -> tuple[FromRank, ...]:
    """All that is let in of one kind, each once."""
    document = {**KINDS[kind], "$defs": DOCUMENT["$defs"]}
    data = {**json.loads(example(document, KINDS[kind])), "kind": kind, **FORMS.get(kind, {})}
    found: dict[str, FromRank] = {}
    for place in fields(document, data):
        for raw in raw_values(document, place, present_value(data, place.path)):
            with bounded(), suppress(ValidationError):
                message = FROM_RANK.validate_json(with_value(document, data, place, raw))
                found.setdefault(message.model_dump_json(), message)
    return tuple(found.values())


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"hello"}))
def test_what_a_rank_may_say_its_agent_and_all_others_can_bear(kind: str) -> None:
    said = messages(kind)
    assert said
    case = event_cases()["worker.started"]
    for message in said:
        agent = Agent(case)
        for _ in range(12):  # enough for the messages of a number of steps
            agent.say(message)
        agent.pass_time(1.0)
        agent.pass_time(60.0)
        agent.check_handover()
        services = Services(states_of(case), case.now)
        for received in agent.published:
            services.hear(received.envelope.data, received.envelope.subject)
        for seconds in (1.0, 33.0):
            services.pass_time(seconds)
        check_tracker(services.said, services.now)
