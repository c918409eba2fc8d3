"""Reports of steps to the gateway: what is tried again, and what ends the step."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gangline_registry.core.profiling import profile_of
from gangline_worker.data.profile import SnapshotProfile
from gangline_worker.steps import reports
from gangline_worker.steps.reports import Gateway, Refused
from support.fakes.stub_gateway import TOKEN, Stub, problem, stub

__all__ = ["stub"]
PATH = "/v1/models/small/versions"


@pytest.fixture
def gateway(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setattr(reports, "_PAUSE_S", 0.0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{stub.url}/mlflow/teams/nlp")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", TOKEN)
    found = Gateway.of_job()
    assert found is not None
    return found


@pytest.mark.parametrize("status", [429, 503])
def test_a_gateway_that_is_busy_or_away_is_asked_again(
    gateway: Gateway, stub: Stub, status: int
) -> None:
    stub.on("POST", PATH, problem(status, "later", "not now"), {"version": 3})
    assert gateway.report("small", "", {"version": 3}) == {"version": 3}
    assert stub.bodies("POST", PATH) == [{"version": 3}] * 2


def test_a_profile_is_sent_for_the_team_of_the_job(gateway: Gateway, stub: Stub) -> None:
    found = SnapshotProfile(
        snapshot="corpus@xxh3-" + "0" * 32,
        made_at=datetime(2026, 11, 20, tzinfo=UTC),
        profile=profile_of({"length": [1.0, 2.0]}, 2),
    )
    stub.on("POST", "/v1/profiles", {})
    gateway.profile(found)
    (asked,) = stub.asked
    assert asked.query == {"team": ["nlp"]}
    assert SnapshotProfile.model_validate(asked.json) == found


def test_a_refused_report_is_sent_once_and_its_reason_is_told(gateway: Gateway, stub: Stub) -> None:
    stub.on("POST", PATH, problem(409, "conflict", "there is no version 3"))
    with pytest.raises(Refused, match="there is no version 3"):
        gateway.report("small", "", {"version": 3})
    assert len(stub.asked) == 1
