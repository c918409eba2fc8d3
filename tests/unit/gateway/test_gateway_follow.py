"""Followers: bounded memory per client, signs of life, and a limit on reading old records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gangline_bus.codec import encode
from gangline_bus.ports import TopicPartition
from gangline_gateway import follow
from gangline_gateway.follow import TooSlow
from gangline_gateway.followed import NoStateError
from gangline_gateway.live_view import LiveView
from gangline_gateway.problems import ProblemError
from gangline_gateway.ring import MAX_RECORDS
from gangline_gateway.sse import Streams
from gangline_gateway.user_limits import current_user
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.policy.configured import Limits, configured
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope, LogPosition
from gangline_schemas.events.policy import PolicyConfigured
from gangline_schemas.events.requests import JobCancelRequested, JobSubmitted
from support.builders.gateway import DEADLINE_S, GatewayHarness, bearer, job, served

JOB = "a"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GatewayHarness]:
    found = GatewayHarness(tmp_path, deciding=False)
    found.start()
    yield found
    found.stop()


def say(harness: GatewayHarness, count: int) -> TopicPartition:
    """Requests about one job, read by the tail when this returns; their partition."""
    before = sum(harness.tail.ends(harness.tail.places(Topic.REQUESTS)).values())
    for _ in range(count):
        harness.say(JobCancelRequested(job_id=JOB), JOB)
    places = harness.tail.places(Topic.REQUESTS)
    harness.wait(lambda: sum(harness.tail.ends(places).values()) == before + count)
    return next(place for place, end in harness.tail.ends(places).items() if end)


def decide(harness: GatewayHarness, more: dict[str, int]) -> PolicyConfigured:
    """The first event of the scheduler's log, with these fields, read by the tail."""
    event = configured(Policy(), Limits())
    at = LogPosition(0, 1, 0)
    envelope = Envelope("e", "/test", datetime.now(UTC), "policy", event, position=at)
    record = encode(envelope, topic=harness.names.name(Topic.SCHEDULING), partition=0)
    value = json.dumps({**json.loads(record.value or b""), **more}).encode()
    harness.bus.writer().send(replace(record, value=value))
    places = harness.tail.places(Topic.SCHEDULING)
    harness.wait(lambda: sum(harness.tail.ends(places).values()) == 1)
    return event


@pytest.mark.parametrize("more", [{}, {"of_a_later_release": 1}])
def test_part_of_an_event_is_no_exact_state(harness: GatewayHarness, more: dict[str, int]) -> None:
    event = decide(harness, more)
    view = harness.tail.view()
    assert [state.policy for state in view.scheduling.known] == [event]
    if more:
        with pytest.raises(NoStateError, match="upgrade the gateway"):
            view.scheduling.states()
    else:
        assert view.scheduling.states() == view.scheduling.known


def test_jobs_and_nodes_are_shown_without_an_exact_state(tmp_path: Path) -> None:
    harness = GatewayHarness(tmp_path, deciding=False)
    with served(harness) as client:
        decide(harness, {"of_a_later_release": 1})
        answers = {
            path: client.get(f"/v1/{path}", headers=bearer("admin")).status_code
            for path in ("nodes", "training-jobs", "queue")
        }
    assert answers == {"nodes": 200, "training-jobs": 200, "queue": 503}


def test_a_client_that_falls_behind_is_dropped_and_told(harness: GatewayHarness) -> None:
    place = say(harness, 1)

    async def slow() -> list[str]:
        async def parts() -> object:
            async for batch in harness.context.followers.follow({place: 0}, lambda _: True, 0.05):
                yield f"{len(batch.records)}"
                await asyncio.to_thread(say, harness, MAX_RECORDS + 1)

        response = Streams(1).response(parts(), "ada")  # type: ignore[arg-type]
        return [str(part) async for part in response.body_iterator]

    _, first, last = asyncio.run(slow())
    assert first == "1"
    assert last.startswith("event: dropped\n")


def test_a_view_has_all_that_a_stream_has_given(harness: GatewayHarness) -> None:
    """Also while the tail folds on: of so many records read at least half are submissions."""
    places = harness.tail.places(Topic.REQUESTS)
    for number in range(100):
        submitted = {"job_id": f"job-{number}", "spec": job(), "user": "ada"}
        harness.say(JobSubmitted.model_validate(submitted), f"job-{number}")
        harness.say(JobCancelRequested(job_id=JOB), JOB)
        harness.wait(lambda read=2 * number + 1: sum(harness.tail.ends(places).values()) >= read)
        assert len(harness.tail.view().jobs) >= number


def test_a_quiet_stream_gives_signs_of_life(harness: GatewayHarness) -> None:
    place = say(harness, 1)

    async def quiet() -> list[int]:
        found: list[int] = []
        async for batch in harness.context.followers.follow({place: 1}, lambda _: True, 0.01):
            assert batch.current
            found.append(len(batch.records))
            if len(found) == 3:
                break
        return found

    assert asyncio.run(quiet()) == [0, 0, 0]


def test_few_read_old_records_at_once(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "CATCH_UPS_AT_ONCE", 1)
    place = say(harness, MAX_RECORDS + 1)
    followers = harness.context.followers

    async def two() -> int:
        first = followers.follow({place: 0}, lambda _: True, 0.05)
        second = followers.follow({place: 0}, lambda _: True, 0.05)
        batch = await anext(first)
        with pytest.raises(ProblemError) as refused:
            await anext(second)
        assert refused.value.status == 503
        await first.aclose()  # type: ignore[attr-defined]
        third = followers.follow({place: 0}, lambda _: True, 0.05)
        again = await anext(third)
        await third.aclose()  # type: ignore[attr-defined]
        assert len(again.records) == len(batch.records)
        return batch.records[0].offset

    assert asyncio.run(two()) == 0


def test_a_user_reads_few_streams_of_old_records_and_others_read_theirs(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "CATCH_UPS_PER_USER", 1)
    place = say(harness, MAX_RECORDS + 1)
    followers = follow.Followers(harness.tail)

    async def old(user: str) -> AsyncIterator[follow.Batch]:
        current_user.set(user)
        found = followers.follow({place: 0}, lambda _: True, 0.05)
        await anext(found)
        return found

    async def three() -> None:
        mine = await old("ada")
        with pytest.raises(ProblemError) as refused:
            await old("ada")
        assert refused.value.status == 429
        theirs = await old("bob")
        for follower in (mine, theirs):
            await follower.aclose()  # type: ignore[attr-defined]
        await (await old("ada")).aclose()  # type: ignore[attr-defined]

    asyncio.run(three())


def test_a_client_that_takes_no_old_records_loses_its_place(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "CATCH_UPS_AT_ONCE", 1)
    place = say(harness, MAX_RECORDS + 1)
    followers = follow.Followers(harness.tail, take_s=0.05)

    async def one_takes_nothing() -> None:
        slow = followers.follow({place: 0}, lambda _: True, 0.05)
        await anext(slow)
        while True:
            other = followers.follow({place: 0}, lambda _: True, 0.05)
            try:
                await anext(other)
            except ProblemError:
                await asyncio.sleep(0.01)
                continue
            await other.aclose()  # type: ignore[attr-defined]
            break
        with pytest.raises(TooSlow):
            await anext(slow)

    asyncio.run(asyncio.wait_for(one_takes_nothing(), DEADLINE_S))


def test_a_follower_ends_with_the_rings_when_it_is_slow_by_itself(harness: GatewayHarness) -> None:
    place = say(harness, 1)

    async def late() -> None:
        follower = harness.context.followers.follow({place: 0}, lambda _: True, 0.05)
        await anext(follower)
        await asyncio.to_thread(say, harness, MAX_RECORDS + 1)
        with pytest.raises(TooSlow):
            await anext(follower)

    asyncio.run(late())


def test_who_waits_for_an_answer_gets_it_or_none_in_time(harness: GatewayHarness) -> None:
    def seen(live: LiveView) -> str | None:
        job = live.jobs.get(JOB)
        return job.user if job else None

    async def wait() -> tuple[str | None, str | None]:
        nobody = await harness.tail.until(seen, 0.01)
        waiting = asyncio.create_task(harness.tail.until(seen, DEADLINE_S))
        submitted = JobSubmitted.model_validate({"job_id": JOB, "spec": job(), "user": "ada"})
        await asyncio.to_thread(harness.say, submitted, JOB)
        return nobody, await waiting

    assert asyncio.run(wait()) == (None, "ada")
