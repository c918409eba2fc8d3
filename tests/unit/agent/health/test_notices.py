"""Termination notices, from a server that answers as each provider documents it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from gangline_worker.agent.health.notices import (
    Notice,
    Notices,
    NoticesUnavailableError,
    NoticeWatch,
    Provider,
    open_notices,
)
from support.fakes.metadata_server import MetadataServer

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with MetadataServer() as made:
        yield made


def source(provider: Provider, server: MetadataServer) -> Notices:
    found = open_notices(provider, server.url)
    assert found is not None
    return found


def event(kind: str, machine: str = "FrontEnd_IN_0", before: str = "") -> dict[str, object]:
    """As in Azure's documentation."""
    return {
        "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "EventStatus": "Scheduled" if before else "Started",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [machine],
        "NotBefore": before,
        "Description": "Virtual machine is being evicted.",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


@pytest.mark.parametrize("provider", ["aws", "gcp", "azure"])
def test_where_nothing_is_planned_there_is_no_notice(provider: Provider, server: MetadataServer):
    notices = source(provider, server)
    assert notices.read(NOW) is None
    assert notices.read(NOW) is None


def test_aws_names_the_action_and_its_time(server: MetadataServer):
    notices = source("aws", server)
    server.spot_action = {"action": "terminate", "time": "2026-11-21T08:02:00Z"}
    found = Notice("aws will terminate this spot instance", 120.0)
    assert notices.read(NOW) == found
    assert notices.read(NOW) == found
    assert len(server.tokens) == 1


def test_an_aws_token_whose_time_is_over_is_replaced(server: MetadataServer):
    notices = source("aws", server)
    notices.read(NOW)
    server.forget_tokens()
    server.spot_action = {"action": "hibernate", "time": "2026-11-21T07:59:58Z"}
    assert notices.read(NOW) == Notice("aws will hibernate this spot instance", 0.0)


def test_gcp_preempts(server: MetadataServer):
    server.preempted = "TRUE"
    assert source("gcp", server).read(NOW) == Notice("gcp preempts this machine", 30.0)


@pytest.mark.parametrize(
    ("said", "left_s"),
    [("MIGRATE_ON_HOST_MAINTENANCE", None), ("TERMINATE_ON_HOST_MAINTENANCE", 60.0)],
)
def test_gcp_maintenance_counts_when_it_ends_the_machine(
    said: str, left_s: float | None, server: MetadataServer
):
    server.maintenance_event = said
    notice = source("gcp", server).read(NOW)
    assert (notice.left_s if notice else None) == left_s


def test_azure_names_events_of_other_machines_and_harmless_ones(server: MetadataServer):
    server.scheduled_events = [
        event("Preempt", "FrontEnd_IN_1", "Sat, 21 Nov 2026 08:00:30 GMT"),
        event("Freeze", before="Sat, 21 Nov 2026 08:00:30 GMT"),
    ]
    assert source("azure", server).read(NOW) is None


def test_azure_says_when_the_first_event_begins(server: MetadataServer):
    server.scheduled_events = [
        event("Reboot", before="Sat, 21 Nov 2026 08:15:00 GMT"),
        event("Preempt", before="Sat, 21 Nov 2026 08:00:30 GMT"),
    ]
    notices = source("azure", server)
    assert notices.read(NOW) == Notice("azure plans to preempt this machine", 30.0)
    server.scheduled_events = [event("Terminate")]
    assert notices.read(NOW) == Notice("azure plans to terminate this machine", 0.0)


@pytest.mark.parametrize("provider", ["aws", "gcp", "azure"])
def test_a_service_that_is_away_or_broken_is_told_apart(provider: Provider, server: MetadataServer):
    notices = source(provider, server)
    server.broken = True
    with pytest.raises(NoticesUnavailableError, match="500"):
        notices.read(NOW)
    server.broken = False
    assert notices.read(NOW) is None
    nobody = open_notices(provider, "http://127.0.0.1:9")
    assert nobody is not None
    with pytest.raises(NoticesUnavailableError):
        nobody.read(NOW)


def test_answers_that_are_not_as_documented_are_refused(server: MetadataServer):
    server.spot_action = {"action": "terminate", "time": "soon"}
    with pytest.raises(NoticesUnavailableError):
        source("aws", server).read(NOW)
    server.scheduled_events = [event("Preempt", before="soon")]
    with pytest.raises(NoticesUnavailableError):
        source("azure", server).read(NOW)


def test_a_watch_tells_the_notice_once_also_after_the_service_was_away(server: MetadataServer):
    found: list[Notice] = []
    told, ended = threading.Event(), threading.Event()
    server.broken = True

    def tell(notice: Notice) -> None:
        found.append(notice)
        told.set()

    watch = NoticeWatch(source("gcp", server), 0.01, tell, ended)
    assert watch.read() is None
    watch.start()
    server.preempted = "TRUE"
    server.broken = False
    assert told.wait(30)
    ended.set()
    assert [notice.reason for notice in found] == ["gcp preempts this machine"]


def test_no_provider_gives_no_notices():
    assert open_notices("none", None) is None
