"""Rounds over nodes and objects: one that is refused or not known holds up no other."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from gangline_kube.core.job_pod import JOB, PodRules
from gangline_kube.core.nodes import Rules
from gangline_kube.core.resource import GROUP
from gangline_kube.core.training_job import job_id_of, shown_part
from gangline_kube.service.api import Cluster, Denied, KubeError, Unavailable
from gangline_kube.service.gateway import Away, Gateway, GatewayError
from gangline_kube.service.mirror import LOST_S, SINGLE, Mirror
from gangline_kube.service.node_rounds import NodeRounds
from gangline_kube.service.pod_rounds import UNKNOWN_S, PodRounds, place_part
from gangline_schemas.api.jobs import Job, JobSummary, Placed
from gangline_schemas.job import JobSpec
from gangline_schemas.resources import Resources
from support.fakes.job_gateway import JobGateway

NODE = {"metadata": {"name": "n"}}
PODS_KEPT_S = 30.0


class Sides:
    """Both sides in memory: `patched` and `deleted` objects, `asked` jobs and nodes."""

    def __init__(self, known: dict[str, Any] | None = None) -> None:
        self.known = known or {}
        self.refusal: GatewayError | None = None
        self.protected: dict[str, KubeError] = {}
        self.patched: list[str] = []
        self.changes: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.active: list[JobSummary] = []
        self.created: list[dict[str, Any]] = []
        self.accounts: tuple[str, ...] = ()
        self.deleted: list[str] = []
        self.now = 0.0
        self._lock = threading.Lock()

    def patch(
        self, _of: object, name: str, change: dict[str, Any], *_: object, **__: object
    ) -> dict[str, Any]:
        if name in self.protected:
            raise self.protected[name]
        with self._lock:
            self.patched.append(name)
            self.changes.append(change)
        return {}

    def job(self, job_id: str) -> JobSummary | None:
        with self._lock:
            self.asked.append(job_id)
        return self.known.get(job_id)

    def active_jobs(self, _user: str = "") -> list[JobSummary]:
        return self.active

    def create(self, _of: object, item: dict[str, Any], *_: object) -> None:
        account = item["spec"].get("serviceAccountName")
        if account is not None and account not in self.accounts:
            raise Denied(403, f"pods is forbidden: serviceaccount {account} not found")
        self.created.append(item)

    def delete(self, _of: object, name: str, *_: object) -> None:
        self.deleted.append(name)

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
    metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}
    status = {"jobId": id_of(name), "state": "pending"}
    return {"metadata": metadata, "spec": {"team": "nlp"}, "status": status}


def id_of(name: str) -> str:
    """The id of the job of `item(name)`."""
    return job_id_of(name, "nlp", name)


def job(job_id: str) -> JobSummary:
    fields = {"job_id": job_id, "state": "failed", "user": "kubernetes", "reason": ""}
    empty = dict.fromkeys(JobSummary.model_fields)
    return JobSummary.model_construct(**{**empty, **fields})


def test_jobs_that_the_gateway_does_not_know_hold_up_no_other() -> None:
    names = [f"job-{number:04}" for number in range(2 * SINGLE + 1)]
    ids = sorted(map(id_of, names))
    last = next(name for name in names if id_of(name) == ids[-1])
    sides = Sides({ids[-1]: job(ids[-1])})
    made = mirror(sides, [item(name) for name in names])
    for _ in range(3):
        made.round()
    assert set(sides.patched) == {last}
    assert set(sides.asked) == {*ids}
    assert len(sides.asked) == 3 * SINGLE


def test_an_object_ends_once_its_job_is_unknown_for_long() -> None:
    sides = Sides()
    made = mirror(sides, [item("gone"), item("late")])
    made.round()
    sides.now = LOST_S - 1
    sides.known = {id_of("late"): job(id_of("late"))}
    made.round()
    assert sides.patched == ["late"]
    sides.known, sides.now = {}, LOST_S
    made.round()
    assert sides.patched == ["late", "gone"]
    status = sides.changes[-1]["status"]
    assert (status["state"], status["ended"]) == ("unknown", True)
    assert "does not know" in status["reason"]


def test_objects_of_other_namespaces_are_not_looked_at() -> None:
    sides = Sides({id_of(name): job(id_of(name)) for name in ("own", "other")})
    mirror(sides, [item("own"), item("other", "vision")], "nlp").round()
    assert (sides.asked, sides.patched) == ([id_of("own")], ["own"])


def test_an_object_shows_its_own_job_whatever_its_status_names() -> None:
    sides = Sides({id_of("own"): job(id_of("own")), "job-of-others": job("job-of-others")})
    changed = item("own")
    changed["status"]["jobId"] = "job-of-others"
    mirror(sides, [changed]).round()
    assert sides.asked == [id_of("own")]
    assert sides.changes[0]["status"]["jobId"] == id_of("own")


class OneByOne:
    """A pool that does the next thing once the one before is known."""

    map = map


def test_an_object_whose_change_is_refused_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"job-{number}" for number in range(4)]
    sides = Sides({id_of(name): job(id_of(name)) for name in names})
    refused = min(names, key=id_of)
    sides.protected = {refused: KubeError(422, "spec.run: is not valid")}
    made = mirror(sides, [item(name) for name in names])
    monkeypatch.setattr(made, "_pool", OneByOne())
    with pytest.raises(KubeError, match=r"spec\.run"):
        made.round()
    assert {*sides.patched} == {*names} - {refused}


def test_an_id_that_no_job_can_have_is_of_no_job() -> None:
    """A pod's label may be one, and is in the hands of those who make pods."""
    with JobGateway() as served:
        gateway = Gateway(served.url, "token")
        assert [gateway.job(one) for one in ("not-there", "Has.Dots")] == [None, None]


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


@pytest.mark.parametrize(
    ("refusal", "others"),
    [(Denied(403, "admission webhook denied it"), ["b"]), (Unavailable(503, "away"), [])],
)
def test_a_node_that_a_rule_of_the_cluster_protects_holds_up_no_other(
    refusal: KubeError, others: list[str]
) -> None:
    sides = Sides()
    sides.protected = {"a": refusal}
    nodes = [
        {"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"unschedulable": True}}
        for name in ("a", "b")
    ]
    rounds = NodeRounds(cast("Cluster", sides), cast("Gateway", sides), Rules())
    with pytest.raises(type(refusal)):
        rounds.round(nodes, [])
    assert sides.asked == others


def pod_rounds(sides: Sides, **more: Any) -> PodRounds:
    uids = range(1000, 2000)
    rules = PodRules("jobs", "train:1", "agents:1", "/data", uids, keep_s=PODS_KEPT_S, **more)
    return PodRounds(cast("Cluster", sides), cast("Gateway", sides), rules, lambda: sides.now)


def pod(job_id: str) -> dict[str, Any]:
    """A bound pod of a job on the node n."""
    notes = {f"{GROUP}/node": "n", f"{GROUP}/ranks": "1"}
    metadata = {"name": job_id, "uid": job_id, "labels": {JOB: job_id}, "annotations": notes}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}


def gang(job_id: str, state: str = "running", attempt: int = 1, **more: Any) -> Job:
    """The gateway's answer about a job; it has a GPU of the node n unless it is pending."""
    spec = JobSpec.model_validate(
        {"name": "j", "team": "nlp", "run": "true", "resources": {"gpus": 1}}
    )
    placed = Placed.model_construct(node_id="n", gpus=[0], first_rank=0)
    fields = {"job_id": job_id, "state": state, "attempt": attempt, "team": "nlp", "spec": spec}
    nodes = {"nodes": [] if state == "pending" else [placed]}
    return Job.model_construct(**{**dict.fromkeys(Job.model_fields), **fields, **nodes, **more})


def test_new_pods_have_the_class_of_the_priority_that_the_job_has_now() -> None:
    sides = Sides({"j": gang("j", priority=20)})
    sides.active = [sides.known["j"]]
    made = pod_rounds(sides, priority_classes={25: "high", 100: "low"})
    made.round([NODE], [])
    sides.known["j"] = gang("j", attempt=2, priority=60)
    sides.active = [sides.known["j"]]
    made.round([NODE], [])
    classes = [item["spec"]["priorityClassName"] for item in sides.created]
    assert classes == ["high", "low"]


def test_the_gateway_is_asked_once_about_a_gang_and_never_about_a_job_that_waits() -> None:
    sides = Sides({"runs": gang("runs"), "waits": gang("waits", "pending")})
    sides.active = list(sides.known.values())
    made = pod_rounds(sides)
    for _ in range(3):
        made.round([NODE], [pod("runs")])
    assert (sides.asked, sides.deleted) == (["runs"], [])


def test_a_gang_that_was_unknown_for_a_moment_before_keeps_its_pods() -> None:
    sides, pods = Sides(), [pod("j")]
    made = pod_rounds(sides)
    made.round([NODE], pods)
    sides.known, sides.active = {"j": gang("j")}, [gang("j")]
    for now in (1.0, 2.0):
        sides.now = now
        made.round([NODE], pods)
    sides.now, sides.known, sides.active = 2 * UNKNOWN_S, {}, []
    made.round([NODE], pods)
    assert sides.deleted == []
    sides.now += UNKNOWN_S + 1
    made.round([NODE], pods)
    assert sides.deleted == ["j"]


def test_pods_wait_for_the_next_attempt_from_the_end_of_the_last_one() -> None:
    sides, pods = Sides({"j": gang("j")}), [pod("j")]
    made = pod_rounds(sides)
    for now, state in ((0, "running"), (5, "pending"), (9, "running"), (90, "pending")):
        sides.now, sides.active = now, [gang("j", state)]
        made.round([NODE], pods)
    assert sides.deleted == []
    sides.now = 90 + PODS_KEPT_S + 1
    made.round([NODE], pods)
    assert sides.deleted == ["j"]


def test_a_gang_whose_pods_are_refused_holds_up_no_other_and_the_reason_is_raised() -> None:
    sides = Sides({"a": gang("a", team="nlp"), "b": gang("b", team="vision")})
    sides.active, sides.accounts = list(sides.known.values()), ("ranks",)
    made = pod_rounds(sides, account="ranks", team_accounts={"nlp": "gone"})
    with pytest.raises(Denied, match="gone not found"):
        made.round([NODE], [])
    assert [item["metadata"]["labels"][JOB] for item in sides.created] == ["b"]
    sides.accounts = ("ranks", "gone")
    made.round([NODE], [])
    assert {item["metadata"]["labels"][JOB] for item in sides.created} == {"a", "b"}


def test_only_the_nodes_of_the_rules_have_pods() -> None:
    pools = [{"pool": "shared"}, {"pool": "old", "gpu": "yes"}]
    labels = {
        "a": {"pool": "own"},
        "b": {"pool": "shared", "x": "y"},
        "c": {"pool": "old"},
        "d": {"pool": "old", "gpu": "yes"},
    }
    nodes = [place_part({"metadata": {"name": name, "labels": labels[name]}}) for name in labels]
    placed = [Placed.model_construct(node_id=name, gpus=[0], first_rank=0) for name in labels]
    sides = Sides({"j": gang("j", nodes=placed)})
    sides.active = list(sides.known.values())
    pod_rounds(sides, nodes=tuple(pools)).round(nodes, [])
    made = {item["metadata"]["annotations"][f"{GROUP}/node"] for item in sides.created}
    assert made == {"b", "d"}
    pod_rounds(sides, nodes=tuple(pools)).round(nodes, sides.created)
    assert len(sides.patched) == 2, "their gates are lifted; nobody waits for the other nodes"


def test_a_pod_is_limited_by_what_its_node_has_for_pods() -> None:
    has = {"cpu": "63900m", "memory": "65536Ki", "nvidia.com/gpu": "2"}
    node = place_part({"metadata": {"name": "n"}, "status": {"allocatable": has}})
    sides = Sides({"j": gang("j")})
    sides.active = list(sides.known.values())
    small = {"gpus": 1, "memory_per_gpu_gb": 0.001}
    spec = sides.known["j"].spec.model_copy(update={"resources": Resources.model_validate(small)})
    sides.known["j"] = gang("j", spec=spec)
    pod_rounds(sides).round([node], [])
    (container,) = sides.created[0]["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert limits == {"cpu": "31950m", "memory": "32Mi", "nvidia.com/gpu": "1"}
