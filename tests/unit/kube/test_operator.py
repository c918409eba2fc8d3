"""Deletions wait until the cancellation is accepted; later changes that count and do not."""

from __future__ import annotations

from typing import cast

import kopf
import pytest

from gangline_kube.core.training_job import wanted
from gangline_kube.service.api import Cluster
from gangline_kube.service.gateway import INVALID_ID, Away, Gateway, GatewayError
from gangline_kube.service.operator import UNKNOWN_TRIES, Operator, settings_of

SPEC = {"team": "nlp", "run": "true", "resources": {"gpus": 1}}
JOB_ID = wanted("train", "uid-1", SPEC).job_id


class Cancels:
    """A gateway that answers each cancellation so, and takes each priority."""

    def __init__(self, answer: GatewayError | bool) -> None:
        self._answer = answer
        self.asked: list[str] = []
        self.priorities: list[tuple[str, int]] = []

    def prioritize(self, job_id: str, priority: int) -> None:
        self.priorities.append((job_id, priority))

    def cancel(self, job_id: str) -> bool:
        self.asked.append(job_id)
        if isinstance(self._answer, GatewayError):
            raise self._answer
        return self._answer


@pytest.mark.parametrize("answer", [GatewayError(403, "needs an admin"), Away(503, "busy"), False])
def test_an_object_stays_while_its_job_is_not_cancelled(answer: GatewayError | bool) -> None:
    operator = Operator(cast("Cluster", None), cast("Gateway", Cancels(answer)))
    with pytest.raises(kopf.TemporaryError):
        operator.cancel("train", "uid-1", SPEC, {"jobId": JOB_ID}, retry=0)


@pytest.mark.parametrize(
    ("answer", "retry"),
    [(True, 0), (False, UNKNOWN_TRIES), (GatewayError(INVALID_ID, "job_id: has dots"), 0)],
)
def test_an_object_goes_once_it_is(answer: GatewayError | bool, retry: int) -> None:
    gateway = Cancels(answer)
    operator = Operator(cast("Cluster", None), cast("Gateway", gateway))
    operator.cancel("train", "uid-1", SPEC, {"jobId": JOB_ID}, retry=retry)
    assert gateway.asked == [JOB_ID]


def test_a_status_that_was_changed_by_hand_names_no_job_of_others() -> None:
    gateway = Cancels(answer=True)
    operator = Operator(cast("Cluster", None), cast("Gateway", gateway))
    operator.cancel("train", "uid-1", SPEC, {"jobId": "job-of-others"}, retry=0)
    operator.prioritize("train", "uid-1", SPEC, {"jobId": "job-of-others"})
    assert gateway.asked == [JOB_ID]
    assert [job_id for job_id, _ in gateway.priorities] == [JOB_ID]


def test_a_priority_is_changed_whatever_the_other_fields_became() -> None:
    gateway = Cancels(answer=True)
    operator = Operator(cast("Cluster", None), cast("Gateway", gateway))
    changed = {**SPEC, "resources": {"gpus": -1}}
    operator.prioritize("train", "uid-1", {**changed, "priority": "high"}, {"jobId": JOB_ID})
    operator.prioritize("train", "uid-1", changed, {})
    high, usual = (wanted("train", "uid-1", {**SPEC, **each}).spec.priority
                   for each in ({"priority": "high"}, {}))  # fmt: skip
    assert gateway.priorities == [(JOB_ID, high), (JOB_ID, usual)]
    with pytest.raises(kopf.PermanentError, match=r"spec\.priority"):
        operator.prioritize("train", "uid-1", {**SPEC, "priority": 101}, {})


def test_a_spec_that_became_invalid_still_names_its_job() -> None:
    gateway = Cancels(answer=True)
    operator = Operator(cast("Cluster", None), cast("Gateway", gateway))
    changed = {**SPEC, "resources": {"gpus": -1}}
    operator.cancel("train", "uid-1", changed, {}, retry=0)
    assert gateway.asked == [JOB_ID]
    operator.cancel("train", "uid-1", changed, {"ended": True}, retry=0)
    assert len(gateway.asked) == 1


def test_large_annotations_of_a_user_are_not_copied_into_another() -> None:
    """All annotations of an object have 256 KB together: more, and no change is accepted."""
    storage = settings_of(scanning=False).persistence.diffbase_storage
    metadata = {"name": "train", "annotations": {"mine": "x" * 200_000}, "labels": {"a": "b"}}
    body = kopf.Body(
        {"metadata": metadata, "spec": {**SPEC, "priority": 5, "files": "x" * 100_000}}
    )
    patch = kopf.Patch()
    storage.store(body=body, patch=patch, essence=storage.build(body=body))
    assert sum(len(value or "") for value in patch.metadata.annotations.values()) < 1000
    changed = kopf.Body({"metadata": {}, "spec": {**SPEC, "priority": 6}})
    assert storage.build(body=changed) != storage.build(body=body)
    assert storage.build(body=kopf.Body({"metadata": {}, "spec": SPEC})) == {}
