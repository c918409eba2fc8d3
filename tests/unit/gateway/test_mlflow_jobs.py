"""A job's token stands for an attempt that has its GPUs now, and for no other one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gangline_gateway.live import Live
from gangline_gateway.live_model import LiveJob
from gangline_gateway.mlflow_jobs import JobTokens
from gangline_gateway.mlflow_routes import Refused, job_path
from gangline_gateway.mlflow_scope import JobScope
from gangline_gateway.problems import ProblemError
from gangline_schemas.envelope import Envelope
from gangline_service.job_tokens import SECRET_KEY, JobAttempt, make_token
from gangline_storage.errors import StoreError
from gangline_storage.local import LocalStore
from gangline_storage.shared_secret import SharedSecret
from support.builders.gangs import gang_released

AT = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING = LiveJob("j", "nlp", "j", "ada", "running", AT, admitted=True, queued=True, attempt=3)


class AwayStore(LocalStore):
    """A store that does not answer."""

    def get(self, key: str) -> bytes:
        raise StoreError(f"{key}: no answer")


def tokens(tmp_path: Path, job: LiveJob | None) -> JobTokens:
    return JobTokens(LocalStore(tmp_path), lambda job_id: job if job_id == "j" else None)


def test_a_token_is_known_by_the_store_s_secret(tmp_path: Path) -> None:
    found = tokens(tmp_path, RUNNING)
    secret = SharedSecret(LocalStore(tmp_path), SECRET_KEY).value()
    good = make_token(secret, JobAttempt("j", 3))
    assert asyncio.run(found.authenticate(good)) == JobAttempt("j", 3)
    assert asyncio.run(found.authenticate(make_token(bytes(32), JobAttempt("j", 3)))) is None


def test_without_the_store_the_client_is_asked_to_try_again(tmp_path: Path) -> None:
    found = JobTokens(AwayStore(tmp_path), lambda _: RUNNING)
    with pytest.raises(ProblemError) as refused:
        asyncio.run(found.authenticate(make_token(bytes(32), JobAttempt("j", 3))))
    assert refused.value.status == 503


def test_the_attempt_that_runs_has_its_scope(tmp_path: Path) -> None:
    for state in ("running", "checkpointing", "initializing"):
        scope = tokens(tmp_path, replace(RUNNING, state=state)).scope(JobAttempt("j", 3))
        assert scope == JobScope("j", 3, "nlp")


@pytest.mark.parametrize(
    ("job", "attempt", "status"),
    [
        (RUNNING, 2, 403),
        (RUNNING, 4, 503),
        (replace(RUNNING, state="succeeded"), 3, 403),
        (replace(RUNNING, state="cancelled"), 3, 403),
        (replace(RUNNING, state="pending", released=3), 3, 403),
        (replace(RUNNING, attempt=0), 1, 503),
        (None, 1, 503),
        (replace(RUNNING, team="team-" + "x" * 58), 3, 403),
    ],
)
def test_any_other_attempt_is_refused(
    tmp_path: Path, job: LiveJob | None, attempt: int, status: int
) -> None:
    with pytest.raises(Refused) as refused:
        tokens(tmp_path, job).scope(JobAttempt("j", attempt))
    assert refused.value.status == status


def test_the_gateway_knows_which_attempt_gave_its_gpus_back() -> None:
    live = Live()
    live.jobs["j"] = RUNNING
    live.apply(Envelope("e", "test", AT, "j", gang_released("j", 3, AT)))
    assert live.jobs["j"].released == 3


def test_a_job_s_path_names_its_own_team_or_none() -> None:
    assert job_path("/mlflow/version", "nlp") == "/version"
    assert job_path("/mlflow/teams/nlp/version", "nlp") == "/version"
    assert job_path("/mlflow/teams/default/version", "team-default") == "/version"
    for other in ("vision", "team-nlp", "team-" + "x" * 58):
        with pytest.raises(Refused) as refused:
            job_path(f"/mlflow/teams/{other}/version", "nlp")
        assert refused.value.status == 403
