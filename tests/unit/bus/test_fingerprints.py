"""A fingerprint covers every fact: no invariant that compares two states is blind to one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gangline_bus.state_json import DataclassCodec
from gangline_checkpoints.core import snapshot as checkpoints
from gangline_checkpoints.core.model import Job
from gangline_checkpoints.core.state import CheckpointState
from gangline_scheduler.core import snapshot as scheduler
from gangline_scheduler.core.state import State as SchedulerState
from support.deciders import DECIDERS

AT = datetime(2026, 1, 1, tzinfo=UTC)
NO_FACTS = {"unreservable", "queue", "cpu_queue", "levels", "mix_from"}
"""Memories, the policy's order of facts, and the configuration's."""


@pytest.mark.parametrize("name", DECIDERS)
def test_every_field_of_a_state_is_in_its_fingerprint(name: str) -> None:
    state = type(DECIDERS[name].make().initial())

    class Watched(state):  # type: ignore[misc,valid-type]
        __slots__ = ("seen",)

        def __getattribute__(self, name: str) -> Any:
            object.__getattribute__(self, "seen").add(name)
            return object.__getattribute__(self, name)

    watched = object.__new__(Watched)
    object.__setattr__(watched, "seen", set())
    Watched.__init__(watched)
    DECIDERS[name].fingerprint(watched)
    read = object.__getattribute__(watched, "seen")
    assert {item.name for item in fields(state)} - read == NO_FACTS & {
        f.name for f in fields(state)
    }


def test_a_field_of_a_job_that_only_the_live_state_has_is_seen() -> None:
    plain = CheckpointState(jobs={"a": Job(attempt=1)})
    suspected = CheckpointState(jobs={"a": replace(Job(attempt=1), suspected_at=AT)})
    assert checkpoints.fingerprint(plain) != checkpoints.fingerprint(suspected)


def test_what_is_derived_from_jobs_is_seen() -> None:
    plain, using = SchedulerState(), SchedulerState()
    using.used_models["a", "h100"] = 3
    assert scheduler.fingerprint(plain) != scheduler.fingerprint(using)


@dataclass
class Pair:
    left: dict[str, int]
    right: dict[str, int]


def test_an_entry_that_moves_to_another_field_changes_the_fingerprint() -> None:
    codec = DataclassCodec(lambda: Pair({}, {}))
    first, second = Pair({"a": 1}, {}), Pair({}, {"a": 1})
    assert codec.fingerprint(first) != codec.fingerprint(second)
    assert codec.fingerprint(first) == codec.fingerprint(Pair({"a": 1}, {}))
