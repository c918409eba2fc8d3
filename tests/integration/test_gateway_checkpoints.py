"""Checkpoints over real HTTP: read page by page, restored, pinned, validated."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx

from gangline_bus.codec import decode
from gangline_schemas.catalog import Topic
from gangline_schemas.events.checkpoints import (
    CheckpointCommitted,
    CheckpointPinChanged,
    IntervalAdvised,
)
from gangline_schemas.events.quota import PinAdmitted
from gangline_schemas.events.scheduling import CheckpointRef
from support.builders.gateway import GatewayHarness
from support.fixtures.gateway_http import NLP, VISION, harness, http_client, problem, submit

__all__ = ["harness", "http_client"]  # fixtures are used by being in this module


def test_a_restore_needs_a_committed_checkpoint(http_client: httpx.Client) -> None:
    run_id = submit(http_client, gpus=53)
    answer = http_client.post(f"/training-runs/{run_id}/checkpoints/10/restore", headers=NLP)
    problem(answer, 404, "not-found")
    wrong = http_client.post(f"/training-runs/{run_id}/checkpoints/x/restore", headers=NLP)
    problem(wrong, 422, "invalid")


def test_checkpoints_are_read_page_by_page(
    harness: GatewayHarness, http_client: httpx.Client
) -> None:
    job_id = submit(http_client, gpus=58)
    path = f"/v1/training-jobs/{job_id}/checkpoints"
    assert http_client.get(path, headers=NLP).json() == {
        "checkpoints": [], "cursor": None, "interval_s": 600.0, "advice": None,
        "prefix": f"teams/nlp/checkpoints/{job_id}",
    }  # fmt: skip
    for step in (10, 20, 30):
        ref = CheckpointRef(job_id=job_id, attempt=1, step=step, world_size=1, commit_key="k")
        saved = CheckpointCommitted(job_id=job_id, checkpoint=ref, size_bytes=1, objects=1)
        harness.say(saved, job_id)
    advised = IntervalAdvised(
        job_id=job_id, attempt=1, interval_s=90.0, limited_by="floor", cost_s=0.1, busy_s=1.0,
        mtbf_s=1e6, failures=0.0, lost_s=46.0, reason="because",
    )  # fmt: skip
    harness.say(advised, job_id)
    harness.wait(lambda: http_client.get(path, headers=NLP).json()["advice"])
    first = http_client.get(path, params={"limit": 2}, headers=NLP).json()
    assert [item["step"] for item in first["checkpoints"]] == [30, 20]
    second = http_client.get(path, params={"limit": 2, "cursor": first["cursor"]}, headers=NLP)
    assert [item["step"] for item in second.json()["checkpoints"]] == [10]
    assert second.json()["cursor"] is None
    assert second.json()["advice"]["interval_s"] == 90.0
    for wrong in ("x", "1", "1.x", "-1.2"):
        answer = http_client.get(path, params={"cursor": wrong}, headers=NLP)
        assert problem(answer, 422, "invalid")["errors"][0]["field"] == "cursor"


def test_a_checkpoint_is_pinned_and_validated_if_it_is_committed(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    job_id = submit(http_client, gpus=49, checkpoint={"promote": "final"})
    plain = submit(http_client, gpus=48)
    base = f"/v1/training-jobs/{job_id}"
    for owner in (job_id, plain):
        ref = CheckpointRef(job_id=owner, attempt=1, step=20, world_size=1, commit_key="k")
        saved = CheckpointCommitted(job_id=owner, checkpoint=ref, size_bytes=1, objects=1)
        harness.say(saved, owner)
        path = f"/v1/training-jobs/{owner}/checkpoints"
        harness.wait(lambda path=path: http_client.get(path, headers=NLP).json()["checkpoints"])
    pin = f"{base}/checkpoints/20/pin"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(http_client.post, pin, json={"pinned": True}, headers=NLP)
        quota = harness.names.name(Topic.QUOTA)
        harness.wait(
            lambda: any(
                isinstance(decode(record).data, PinAdmitted)
                for record in harness.broker.dump(quota)
            )
        )
        assert not asked.done()
        changed = CheckpointPinChanged(job_id=job_id, attempt=1, step=20, pinned=True)
        harness.say(changed, job_id)
        answer = asked.result().json()
    assert (answer["step"], answer["pinned"]) == (20, True)
    again = http_client.post(pin, json={"pinned": True}, headers=NLP)
    assert (again.status_code, again.json()["pinned"]) == (200, True)
    problem(http_client.post(pin, json={"pinned": 7}, headers=NLP), 422, "invalid")

    promote = f"{base}/checkpoints/20/promote"
    run = http_client.post(promote, headers=NLP)
    assert run.status_code == 201
    found = harness.tail.query(lambda live: live.jobs[run.json()["job_id"]].spec)
    assert found is not None
    assert (found.validates, found.resume_from, found.checkpoint.resume) == (True, job_id, "20")
    off = http_client.post(f"/v1/training-jobs/{plain}/checkpoints/20/promote", headers=NLP)
    problem(off, 409, "not-recorded")
    for path in (promote, pin):
        gone, body = path.replace("/20/", "/21/"), {"pinned": True} if path == pin else None
        problem(http_client.post(gone, json=body, headers=NLP), 404, "not-found")
        problem(http_client.post(path, json=body, headers=VISION), 404, "not-found")
