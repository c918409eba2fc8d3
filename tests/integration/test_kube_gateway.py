"""The client of the processes beside Kubernetes, with the genuine gateway over HTTP."""

from __future__ import annotations

import httpx
import pytest

from gangline_kube.core.training_job import status_of, wanted
from gangline_kube.service.gateway import Away, Gateway, GatewayError
from gangline_kube.service.operator import INVALID_ID
from support.builders.gateway import GatewayHarness
from support.fixtures.gateway_http import ADMIN, harness, http_client

__all__ = ["harness", "http_client"]
SPEC = {"team": "nlp", "run": "true", "resources": {"gpus": 2}}


@pytest.fixture
def gateway(http_client: httpx.Client) -> Gateway:
    return Gateway(str(http_client.base_url), ADMIN["Authorization"].removeprefix("Bearer "))


def test_an_object_s_uid_is_one_job(gateway: Gateway) -> None:
    job = wanted("train", "uid-1", SPEC)
    first = gateway.submit(job.spec, job.key)
    assert (first.job_id, first.name) == (job.job_id, "train")
    assert gateway.submit(job.spec, job.key).job_id == first.job_id
    active = {each.job_id: each for each in gateway.active_jobs(first.user)}
    shown = status_of(active[first.job_id])
    assert (shown["jobId"], shown["ended"]) == (first.job_id, False)
    gateway.prioritize(first.job_id, 7)
    found = gateway.job(first.job_id)
    assert found is not None
    assert found.priority == 7
    assert gateway.cancel(first.job_id)
    assert gateway.cancel(first.job_id)
    assert not gateway.cancel("unknown-0123456789")
    with pytest.raises(GatewayError) as invalid:
        gateway.cancel("has.dots-0123456789")
    assert invalid.value.status == INVALID_ID
    assert gateway.job("unknown-0123456789") is None
    with pytest.raises(GatewayError) as changed:
        gateway.submit(wanted("train", "uid-1", {**SPEC, "run": "false"}).spec, job.key)
    assert changed.value.status == 409
    with pytest.raises(GatewayError) as rejected:
        gateway.submit(wanted("big", "uid-2", {**SPEC, "resources": {"gpus": 512}}).spec, "uid-2")
    assert rejected.value.status == 422
    assert "512" in str(rejected.value)


def test_nodes_are_drained_and_the_drain_ends(gateway: Gateway, harness: GatewayHarness) -> None:
    harness.join("n-1")
    harness.wait(lambda: "n-1" in gateway.statuses())
    assert gateway.statuses() == {"n-1": "ready"}
    steps = [
        (True, True, "cordoned in Kubernetes", "draining"),
        (True, False, "pods of others have 2 GPUs", "cordoned"),
        (False, True, "cordoned in Kubernetes", "ready"),
    ]
    for on, move_jobs, reason, status in steps:
        before = gateway.statuses()
        gateway.drain("n-1", on=on, move_jobs=move_jobs, reason=reason)
        harness.wait(lambda before=before: gateway.statuses() != before)
        assert gateway.statuses() == {"n-1": status}


def test_a_token_that_is_unknown_may_be_known_later(http_client: httpx.Client) -> None:
    with pytest.raises(Away):
        Gateway(str(http_client.base_url), "gl_unknown").statuses()
    with pytest.raises(Away):
        Gateway("http://127.0.0.1:9", "gl_unknown").statuses()
