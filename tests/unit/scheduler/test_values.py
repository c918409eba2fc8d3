"""A changed copy of a frozen value is what `dataclasses.replace` makes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from gangline_scheduler.core import values
from gangline_scheduler.core.model import Gang, Job
from support.builders.scheduler import Cluster, node


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    made = Cluster(node())
    made.run("a", 2)
    return made


def kept(cluster: Cluster) -> Iterator[object]:
    """One of each kind of value that the fold changes."""
    job = cluster.job("a")
    assert job.gang is not None
    yield from (job, job.gang)
    yield from (cluster.state.nodes["n1"], cluster.state.free.get("n1"))
    yield from cluster.state.teams.values()


def test_each_kind_is_copied_with_every_field(cluster: Cluster) -> None:
    for value in kept(cluster):
        made = values.replace(value)  # type: ignore[type-var]
        assert made is not value
        assert repr(made) == repr(dataclasses.replace(value))  # type: ignore[type-var]
        for field in dataclasses.fields(value):  # type: ignore[arg-type]
            assert getattr(made, field.name) is getattr(value, field.name)


def test_only_what_is_given_changes_and_only_in_the_copy(cluster: Cluster) -> None:
    job = cluster.job("a")
    before = repr(job)

    made = values.replace(job, attempt=7, gang=None)

    assert made == dataclasses.replace(job, attempt=7, gang=None)
    assert hash(made.team) == hash(job.team)
    assert repr(job) == before


def test_the_copy_is_frozen_and_has_no_other_fields(cluster: Cluster) -> None:
    made = values.replace(cluster.job("a"), attempt=7)

    with pytest.raises(dataclasses.FrozenInstanceError):
        made.attempt = 8  # type: ignore[misc]
    with pytest.raises(AttributeError):
        values.replace(made, atempt=8)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [Job, Gang])
def test_no_kind_does_anything_when_it_is_made(kind: type) -> None:
    assert not hasattr(kind, "__post_init__")
