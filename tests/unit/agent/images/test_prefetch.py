"""The image of a waiting job is fetched where it is expected to start, and not elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from gangline_schemas.base import Event
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GpusReserved,
    JobQueued,
    JobStateChanged,
    JobWaiting,
    NodeShare,
)
from gangline_schemas.job import JobState
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.images import prefetch as module
from gangline_worker.agent.images.prefetch import Prefetch
from gangline_worker.agent.images.problems import ImageNotFound
from support.builders.deciding import spec
from support.builders.gangs import assigned, gang_allocated

NOW = datetime(2026, 11, 26, tzinfo=UTC)


class Fetched:
    """Images that were asked for; `missing` is in no registry, `slow` comes once it is `let`."""

    def __init__(self) -> None:
        self.got: list[tuple[str, int, str, str]] = []
        self.released: list[str] = []
        self.came = threading.Semaphore(0)
        self.begun, self.let = threading.Event(), threading.Event()

    def get_early(self, key: GangKey, team: str, wanted: str, stopping: threading.Event) -> None:
        self.got.append((key.job_id, key.attempt, team, wanted))
        if wanted == "slow":
            self.begun.set()
            self.let.wait(10)
        if wanted == "endless":
            self.begun.set()
            if not stopping.wait(10):
                raise AssertionError("it fetches for a job that has ended")
        if wanted == "missing":
            self.came.release()
            raise ImageNotFound(wanted, "404")
        self.came.release()

    def release(self, key: GangKey) -> None:
        self.released.append(key.job_id)

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.came.acquire(timeout=10)


@pytest.fixture
def images() -> Fetched:
    return Fetched()


@pytest.fixture
def prefetch(images: Fetched) -> Iterator[Prefetch]:
    made = Prefetch("n1", images)
    made.start()
    yield made
    made.stop()


def queued(job_id: str, image: str | None = "hub.example/a:1") -> JobQueued:
    wanted = spec("nlp", 2).model_copy(update={"image": image})
    return JobQueued(job_id=job_id, spec=wanted, user="u", submitted_at=NOW)


def reserved(job_id: str, *nodes: str) -> GpusReserved:
    shares = tuple(NodeShare(node_id=node, gpus=1) for node in nodes)
    return GpusReserved(job_id=job_id, nodes=shares, reason="preempt", until=NOW)


def expected(job_id: str, *nodes: str) -> JobWaiting:
    return JobWaiting(job_id=job_id, code="capacity", message="full", eta=NOW, likely_nodes=nodes)


def cancelled(job_id: str) -> JobStateChanged:
    return JobStateChanged(
        job_id=job_id, attempt=0, previous=JobState.PENDING, state=JobState.CANCELLED
    )


def allocated(job_id: str, image: str | None = None) -> GangAllocated:
    wanted = spec("nlp", 2).model_copy(update={"image": image})
    return gang_allocated(job_id, wanted, assigned())


def test_it_is_fetched_once_and_kept_until_its_job_starts_or_ends(
    prefetch: Prefetch, images: Fetched
) -> None:
    prefetch.note(queued("a"))
    prefetch.note(reserved("a", "n0", "n1"))
    prefetch.note(reserved("a", "n1"))
    prefetch.note(queued("last"))
    prefetch.note(expected("last", "n1", "n2"))
    images.wait_for(2)
    assert images.got == [
        ("a", 0, "nlp", "hub.example/a:1"),
        ("last", 0, "nlp", "hub.example/a:1"),
    ]
    assert images.released == []
    prefetch.note(queued("next"))
    prefetch.note(expected("next", "n1"))
    images.wait_for(1)  # "last" is no longer on its way
    prefetch.note(allocated("a"))
    prefetch.note(cancelled("last"))
    assert images.released == ["a", "last"]


def test_others_are_not_fetched_and_a_missing_image_stops_nothing(
    prefetch: Prefetch, images: Fetched
) -> None:
    prefetch.note(queued("elsewhere"))
    prefetch.note(reserved("elsewhere", "n0"))
    prefetch.note(expected("elsewhere", "n0"))
    prefetch.note(queued("plain", None))
    prefetch.note(reserved("plain", "n1"))
    prefetch.note(queued("ended"))
    prefetch.note(cancelled("ended"))
    prefetch.note(reserved("ended", "n1"))
    prefetch.note(reserved("unknown", "n1"))
    for job_id, image in (("no", "missing"), ("last", "b")):
        prefetch.note(queued(job_id, image))
        prefetch.note(reserved(job_id, "n1"))
        images.wait_for(1)
    assert [job_id for job_id, *_ in images.got] == ["no", "last"]


def test_a_job_that_waits_again_has_its_image_fetched_here(
    prefetch: Prefetch, images: Fetched
) -> None:
    prefetch.note(allocated("again", "b"))
    prefetch.note(expected("again", "n1"))
    images.wait_for(1)
    assert images.got == [("again", 0, "nlp", "b")]


def test_an_image_is_not_fetched_once_its_gang_has_started(
    prefetch: Prefetch, images: Fetched
) -> None:
    prefetch.note(queued("first", "slow"))
    prefetch.note(reserved("first", "n1"))
    assert images.begun.wait(10)
    for job_id in ("started", "last"):
        prefetch.note(queued(job_id))
        prefetch.note(reserved(job_id, "n1"))
    prefetch.note(allocated("started"))
    prefetch.note(allocated("first"))
    images.let.set()
    images.wait_for(2)
    assert [job_id for job_id, *_ in images.got] == ["first", "last"]
    assert images.released == ["started", "first"], "what came for a gang that runs is its own"


@pytest.mark.parametrize("ends", [cancelled, allocated])
def test_a_registry_without_end_holds_up_no_image_once_its_job_has_ended(
    prefetch: Prefetch, images: Fetched, ends: Callable[[str], Event]
) -> None:
    prefetch.note(queued("first", "endless"))
    prefetch.note(reserved("first", "n1"))
    assert images.begun.wait(10)
    prefetch.note(queued("of-others"))
    prefetch.note(reserved("of-others", "n1"))
    prefetch.note(ends("first"))
    images.wait_for(2)
    assert [job_id for job_id, *_ in images.got] == ["first", "of-others"]


def test_only_so_many_are_kept(
    prefetch: Prefetch, images: Fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HERE", 2)
    for job_id in ("a", "b", "c"):
        prefetch.note(queued(job_id))
        prefetch.note(expected(job_id, "n1"))
        images.wait_for(1)
    assert images.released == ["a"]


def test_after_the_stop_none_is_fetched(prefetch: Prefetch, images: Fetched) -> None:
    prefetch.note(queued("first", "slow"))
    prefetch.note(reserved("first", "n1"))
    assert images.begun.wait(10)
    prefetch.note(queued("next"))
    prefetch.note(reserved("next", "n1"))
    prefetch.stop()
    images.let.set()
    prefetch._thread.join(10)
    assert not prefetch._thread.is_alive()
    assert [job_id for job_id, *_ in images.got] == ["first"]
