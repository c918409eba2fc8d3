"""A key that is used again after the gateway has forgotten the job it made."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline_bus.codec import decode
from gangline_gateway.history import HistoryRun
from gangline_gateway.history_access import HistoryAccess, Queries
from gangline_schemas.api.runs import Run
from gangline_schemas.catalog import Topic
from gangline_schemas.events.quota import JobClosed
from gangline_schemas.job import JobSpec
from support.builders.gateway import GatewayHarness, NoHistory, job, served
from support.fixtures.gateway_http import NLP, problem

KEYED = {**NLP, "Idempotency-Key": "nightly"}
NOW = datetime(2026, 11, 24, tzinfo=UTC)


class OneRun(NoHistory):
    """ClickHouse that knows one run."""

    def __init__(self) -> None:
        self.row: HistoryRun | None = None

    def run(self, *_: object) -> Any:
        return self.row


def history_run(job_id: str, spec: JobSpec) -> HistoryRun:
    run = Run(
        run_id=job_id, team=spec.team, project="", name=spec.name, user="ada", state="cancelled",
        reason="", attempt=0, restarts=0, gpus=1, priority=50, submitted_at=NOW, started_at=None,
        ended_at=NOW, gpu_seconds=0.0, strategy="custom", code_ref="", data_snapshot="",
        hyperparameters={},
    )  # fmt: skip
    return HistoryRun(run, spec.encode().decode())


def end_and_forget(harness: GatewayHarness, client: httpx.Client) -> str:
    """A job of the key is submitted and cancelled, and falls out of the gateway's memory."""
    job_id: str = client.post("/v1/training-jobs", json=job(), headers=KEYED).json()["job_id"]
    client.post(f"/v1/training-jobs/{job_id}/cancel", headers=NLP)
    quota = harness.names.name(Topic.QUOTA)
    harness.wait(lambda: any(decode(r).type == JobClosed.type for r in harness.broker.dump(quota)))
    harness.wait(lambda: harness.tail.query(lambda live: live.jobs[job_id].ended))
    harness.tail._live._forget(job_id)
    harness.tail._view.changed()
    return job_id


@pytest.mark.parametrize("path", ["/v1/training-jobs", "/training-runs"])
def test_the_job_is_given_as_history_has_it(tmp_path: Path, path: str) -> None:
    known: Any = OneRun()
    harness = GatewayHarness(
        tmp_path,
        HistoryAccess(lambda: Queries(known, known, known, known, known, known, known, known)),
    )
    with served(harness) as client:
        harness.configure("nlp")
        job_id = end_and_forget(harness, client)
        known.row = history_run(job_id, JobSpec.model_validate(job()))
        again = client.post(path, json=job(), headers=KEYED)
        assert (again.status_code, again.json()["state"]) == (200, "cancelled")
        assert job_id in {again.json().get("job_id"), again.json().get("run_id")}
        assert again.headers["location"] == f"/v1/training-jobs/{job_id}"
        other = replace(known.row, spec=JobSpec.model_validate(job(gpus=2)).encode().decode())
        for row in (other, replace(known.row, spec="{}")):
            known.row = row
            problem(client.post(path, json=job(), headers=KEYED), 409, "id-taken")


def test_without_history_the_answer_says_how_the_job_ended_and_nothing_waits(
    tmp_path: Path,
) -> None:
    harness = GatewayHarness(tmp_path)
    with served(harness) as client:
        harness.configure("nlp")
        job_id = end_and_forget(harness, client)
        answer = client.post("/v1/training-jobs", json=job(), headers=KEYED)
        found = problem(answer, 409, "id-taken")
        assert found["detail"] == f"job '{job_id}' was submitted before and has ended: cancelled"
        assert client.get("/v1/training-jobs", headers=NLP).json()["jobs"] == []
