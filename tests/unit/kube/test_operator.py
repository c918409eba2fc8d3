"""Deleting an object waits until its job's cancellation is accepted."""

from __future__ import annotations

from typing import cast

import kopf
import pytest

from gangline_kube.service.api import Cluster
from gangline_kube.service.gateway import Away, Gateway, GatewayError
from gangline_kube.service.operator import UNKNOWN_TRIES, Operator

SPEC = {"team": "nlp", "run": "true", "resources": {"gpus": 1}}


class Cancels:
    """A gateway that answers each cancellation so."""

    def __init__(self, answer: GatewayError | bool) -> None:
        self._answer = answer

    def cancel(self, _job_id: str) -> bool:
        if isinstance(self._answer, GatewayError):
            raise self._answer
        return self._answer


@pytest.mark.parametrize("answer", [GatewayError(403, "needs an admin"), Away(503, "busy"), False])
def test_an_object_stays_while_its_job_is_not_cancelled(answer: GatewayError | bool) -> None:
    operator = Operator(cast("Cluster", None), cast("Gateway", Cancels(answer)))
    with pytest.raises(kopf.TemporaryError):
        operator.cancel("train", "uid-1", SPEC, {"jobId": "train-1"}, retry=0)


@pytest.mark.parametrize(("answer", "retry"), [(True, 0), (False, UNKNOWN_TRIES)])
def test_an_object_goes_once_it_is(answer: bool, retry: int) -> None:
    operator = Operator(cast("Cluster", None), cast("Gateway", Cancels(answer)))
    operator.cancel("train", "uid-1", SPEC, {"jobId": "train-1"}, retry=retry)
