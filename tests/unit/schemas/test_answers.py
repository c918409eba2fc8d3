"""Answers are strict where they are built and tolerant where they are read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from gangline_schemas.api.base import parse, read
from gangline_schemas.api.checkpoints import Checkpoint, CheckpointList
from gangline_schemas.api.cluster import Node
from gangline_schemas.api.jobs import Job
from support.fakes.stub_gateway import NODE, SPEC, job

ROW = {
    "attempt": 1, "step": 10, "status": "committed", "committed_at": "2026-11-24T10:00:00Z",
    "world_size": 8, "size_bytes": 9, "write_s": 1.0, "blocked_s": 0.1,
}  # fmt: skip
LATER = {"a_field_of_tomorrow": 1}


def test_unknown_fields_are_ignored_by_readers_at_every_depth() -> None:
    found = read(CheckpointList, {"checkpoints": [ROW | LATER]} | LATER)
    assert found.checkpoints == [read(Checkpoint, ROW)]
    with pytest.raises(ValidationError):
        CheckpointList.model_validate({"checkpoints": [ROW | LATER]})
    with pytest.raises(ValidationError):
        Job.model_validate(job())


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"state": "a-state-of-tomorrow"}, ("a-state-of-tomorrow", False)),
        ({"state": "cancelled"}, ("cancelled", True)),
    ],
)
def test_a_state_of_tomorrow_is_read_as_text(
    fields: dict[str, Any], shown: tuple[str, bool]
) -> None:
    found = read(Job, job(**fields))
    assert (found.state, found.ended) == shown
    assert to_jsonable_python(found)["state"] == found.state


def test_words_that_the_gateway_does_not_know_are_never_built() -> None:
    node = read(Node, NODE)
    assert to_jsonable_python(read(Node, NODE | {"isolation": "vm"}))["isolation"] == "vm"
    with pytest.raises(ValidationError, match="isolation"):
        Node.model_validate(node.model_dump() | {"isolation": "vm"})


def test_a_spec_that_a_reader_cannot_read_is_none() -> None:
    ours = read(Job, job(spec=SPEC)).spec
    assert ours is not None
    assert ours.resources.gpus == 2
    theirs = job(spec=SPEC | {"topology": {"mode": "a-mode-of-tomorrow"}})
    assert read(Job, theirs).spec is None


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ValidationError, match="write_s"):
        parse(Checkpoint, '{"attempt": 1, "step": 10}')
