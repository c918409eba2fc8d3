"""Rounds over nodes and objects: one that is refused or not known holds up no other."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from gangline_kube.core.nodes import Rules
from gangline_kube.core.training_job import shown_part
from gangline_kube.service.api import Cluster
from gangline_kube.service.gateway import Away, Gateway, GatewayError
from gangline_kube.service.mirror import LOST_S, SINGLE, Mirror
from gangline_kube.service.node_rounds import NodeRounds
from gangline_schemas.api.jobs import JobSummary


class Sides:
    """Both sides in memory: `patched` objects, `asked` jobs and nodes."""

    def __init__(self, known: dict[str, Any] | None = None) -> None:
        self.known = known or {}
        self.refusal: GatewayError | None = None
        self.patched: list[str] = []
        self.changes: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.now = 0.0
        self._lock = threading.Lock()

    def patch(
        self, _of: object, name: str, change: dict[str, Any], *_: object, **__: object
    ) -> dict[str, Any]:
        with self._lock:
            self.patched.append(name)
            self.changes.append(change)
        return {}

    def job(self, job_id: str) -> JobSummary | None:
        with self._lock:
            self.asked.append(job_id)
        return self.known.get(job_id)

    def active_jobs(self, _user: str) -> list[JobSummary]:
        return []

    def statuses(self) -> dict[str, str]:
        return {"a": "ready", "b": "ready"}

    def drain(self, node_id: str, **_: object) -> None:
        if node_id == "a" and self.refusal is not None:
            raise self.refusal
        self.asked.append(node_id)


def mirror(sides: Sides, objects: list[dict[str, Any]], *namespaces: str) -> Mirror:
    api, gateway = cast("Cluster", sides), cast("Gateway", sides)
    parts = [shown_part(each) for each in objects]
    return Mirror(api, gateway, lambda: parts, namespaces, lambda: sides.now)


def item(name: str, namespace: str = "nlp") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "resourceVersion": "1"}
    return {"metadata": metadata, "status": {"jobId": name, "state": "pending"}}


def job(job_id: str) -> JobSummary:
    fields = {"job_id": job_id, "state": "failed", "user": "kubernetes", "reason": ""}
    empty = dict.fromkeys(JobSummary.model_fields)
    return JobSummary.model_construct(**{**empty, **fields})


def test_jobs_that_the_gateway_does_not_know_hold_up_no_other() -> None:
    names = [f"job-{number:04}" for number in range(2 * SINGLE + 1)]
    sides = Sides({names[-1]: job(names[-1])})
    made = mirror(sides, [item(name) for name in names])
    for _ in range(3):
        made.round()
    assert set(sides.patched) == {names[-1]}
    assert set(sides.asked) == {*names}
    assert len(sides.asked) == 3 * SINGLE


def test_an_object_ends_once_its_job_is_unknown_for_long() -> None:
    sides = Sides()
    made = mirror(sides, [item("gone"), item("late")])
    made.round()
    sides.now = LOST_S - 1
    sides.known = {"late": job("late")}
    made.round()
    assert sides.patched == ["late"]
    sides.known, sides.now = {}, LOST_S
    made.round()
    assert sides.patched == ["late", "gone"]
    status = sides.changes[-1]["status"]
    assert (status["state"], status["ended"]) == ("unknown", True)
    assert "does not know" in status["reason"]


def test_objects_of_other_namespaces_are_not_looked_at() -> None:
    sides = Sides({"own": job("own"), "other": job("other")})
    mirror(sides, [item("own"), item("other", "vision")], "nlp").round()
    assert (sides.asked, sides.patched) == (["own"], ["own"])


@pytest.mark.parametrize(("kind", "others"), [(GatewayError, ["b"]), (Away, [])])
def test_a_node_whose_drain_is_refused_holds_up_no_other(
    kind: type[GatewayError], others: list[str]
) -> None:
    sides = Sides()
    sides.refusal = kind(422, "reason: is not plain")
    nodes = [
        {"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"unschedulable": True}}
        for name in ("a", "b")
    ]
    rounds = NodeRounds(cast("Cluster", sides), cast("Gateway", sides), Rules())
    with pytest.raises(kind):
        rounds.round(nodes, [])
    assert sides.asked == others
