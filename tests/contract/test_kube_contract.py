"""What our client relies on of an API server: the in-memory one, and a real one where it is named.

`make test-kube` starts the real one. `GANGLINE_TEST_KUBECONFIG=FILE` names another cluster for
tests: they create namespaces there, pods that never run, and the definition of TrainingJob.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gangline_kube.core.resource import NAMESPACES, PODS, TRAINING_JOBS, Resource
from gangline_kube.service.api import (
    Cluster,
    Conflict,
    Denied,
    Gone,
    KubeError,
    NotFound,
    Unavailable,
)
from support.clients.kube_objects import create, define_training_jobs, delete, new_namespace
from support.fakes.kube_api import KubeServer
from support.fixtures.kube import PROGRAM

NAMED = os.environ.get("GANGLINE_TEST_KUBECONFIG")
SERVERS = ["in-memory", *(["real"] if NAMED or PROGRAM else [])]


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KubeServer, Cluster]]:
    with KubeServer() as server:
        yield server, Cluster(server.kubeconfig(tmp_path_factory.mktemp("kube")))


@pytest.fixture(scope="module", params=SERVERS)
def api(request: pytest.FixtureRequest, in_memory: tuple[KubeServer, Cluster]) -> Cluster:
    if request.param == "in-memory":
        found = in_memory[1]
    else:
        found = Cluster(
            Path(NAMED) if NAMED else request.getfixturevalue("control_plane").kubeconfig
        )
    define_training_jobs(found)
    return found


@pytest.fixture
def space(api: Cluster) -> Iterator[str]:
    name = new_namespace(api)
    yield name
    delete(api, NAMESPACES, name)


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {
            "containers": [{"name": "main", "image": "none.invalid/none"}],
            "schedulerName": "none.invalid",
        },
    }


def job(name: str, **spec: Any) -> dict[str, Any]:
    wanted = {"team": "nlp", "run": "true", "resources": {"gpus": 1}, **spec}
    return {
        "apiVersion": "gangline.dev/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": wanted,
    }


def test_a_watch_continues_where_the_list_ended(api: Cluster, space: str) -> None:
    create(api, PODS, pod("before"), space)
    listed = api.list(PODS, space)
    assert [item["metadata"]["name"] for item in listed.items] == ["before"]
    made = create(api, PODS, pod("one"), space)
    api.patch(PODS, "one", {"metadata": {"labels": {"a": "b"}}}, space)
    delete(api, PODS, "one", space, uid=made["metadata"]["uid"])
    seen = list(islice(api.watch(PODS, listed.version, space), 4))
    assert [change.kind for change in seen] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    assert ["deletionTimestamp" in change.item["metadata"] for change in seen[1:3]] == [False, True]
    assert {change.item["metadata"]["name"] for change in seen} == {"one"}
    assert seen[1].item["metadata"]["labels"] == {"a": "b"}
    again = next(iter(api.watch(PODS, seen[0].version, space)))
    assert (again.kind, again.version) == ("MODIFIED", seen[1].version)


def test_a_watch_from_a_forgotten_version_is_gone(
    api: Cluster, space: str, in_memory: tuple[KubeServer, Cluster]
) -> None:
    create(api, TRAINING_JOBS, job("one"), space)
    in_memory[0].cut_history()
    with pytest.raises(Gone):
        next(iter(api.watch(TRAINING_JOBS, "1", space)))


def test_a_list_is_read_page_by_page(
    api: Cluster, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"pod-{number}" for number in range(5)]
    for name in names:
        create(api, PODS, pod(name), space)
    monkeypatch.setattr("gangline_kube.service.api.PAGE", 2)
    listed = api.list(PODS, space, part=lambda item: {"name": item["metadata"]["name"]})
    assert sorted(item["name"] for item in listed.items) == names
    delete(api, PODS, "pod-3", space)
    seen = list(islice(api.watch(PODS, listed.version, space), 2))
    assert [change.kind for change in seen] == ["MODIFIED", "DELETED"]
    assert {change.item["metadata"]["name"] for change in seen} == {"pod-3"}


def test_names_are_taken_once(api: Cluster, space: str) -> None:
    first = create(api, PODS, pod("one"), space)
    with pytest.raises(Conflict):
        create(api, PODS, pod("one"), space)
    with pytest.raises(NotFound):
        api.get(PODS, "two", space)
    with pytest.raises(NotFound):
        api.patch(PODS, "two", {"metadata": {"labels": {"a": "b"}}}, space)
    with pytest.raises(NotFound):
        delete(api, PODS, "two", space)
    delete(api, PODS, "one", space)
    assert create(api, PODS, pod("one"), space)["metadata"]["uid"] != first["metadata"]["uid"]


def test_a_change_of_an_older_version_conflicts(api: Cluster, space: str) -> None:
    old = create(api, PODS, pod("one"), space)["metadata"]["resourceVersion"]
    change = {"metadata": {"resourceVersion": old, "annotations": {"a": "b"}}}
    newer = api.patch(PODS, "one", change, space)
    assert newer["metadata"]["resourceVersion"] != old
    with pytest.raises(Conflict):
        api.patch(
            PODS, "one", {"metadata": {**change["metadata"], "annotations": {"a": "c"}}}, space
        )
    same = api.patch(PODS, "one", {"metadata": {"annotations": {"a": "b"}}}, space)
    assert same["metadata"]["resourceVersion"] == newer["metadata"]["resourceVersion"]
    gone = api.patch(PODS, "one", {"metadata": {"annotations": {"a": None}}}, space)
    assert not gone["metadata"].get("annotations")


def test_a_uid_guards_deletion_and_changes(api: Cluster, space: str) -> None:
    create(api, PODS, pod("one"), space)
    with pytest.raises(Conflict):
        delete(api, PODS, "one", space, uid=str(uuid.uuid4()))
    change = {"metadata": {"uid": str(uuid.uuid4()), "labels": {"a": "b"}}}
    with pytest.raises(KubeError) as refused:
        api.patch(PODS, "one", change, space)
    assert (refused.value.status, "metadata.uid" in str(refused.value)) == (422, True)


def test_a_bound_pod_has_time_to_end(api: Cluster, space: str) -> None:
    item = pod("one")
    item["spec"] |= {"nodeName": "none.invalid", "terminationGracePeriodSeconds": 60}
    create(api, PODS, item, space)
    api._ask("DELETE", PODS.path(space, "one"), body={})
    ending = api.get(PODS, "one", space)["metadata"]
    assert (bool(ending["deletionTimestamp"]), ending["deletionGracePeriodSeconds"]) == (True, 60)
    delete(api, PODS, "one", space)
    with pytest.raises(NotFound):
        api.get(PODS, "one", space)


def test_finalizers_hold_an_object_back(api: Cluster, space: str) -> None:
    create(api, PODS, pod("one", finalizers=["gangline.dev/test"]), space)
    delete(api, PODS, "one", space)
    held = api.get(PODS, "one", space)["metadata"]
    assert held["deletionTimestamp"]
    api.patch(PODS, "one", {"metadata": {"finalizers": None}}, space)
    with pytest.raises(NotFound):
        api.get(PODS, "one", space)


def test_a_training_job_is_checked_by_its_schema(api: Cluster, space: str) -> None:
    made = create(api, TRAINING_JOBS, job("good", priority="high", typo=1), space)
    assert "typo" not in made["spec"]
    for wrong in ({"resources": {"gpus": -1}}, {"team": "Not A Team"}, {"command": "true"}):
        with pytest.raises(KubeError) as refused:
            create(api, TRAINING_JOBS, job("bad", **wrong), space)
        assert refused.value.status == 422, wrong


def test_the_status_is_a_part_of_its_own(api: Cluster, space: str) -> None:
    create(api, TRAINING_JOBS, job("one"), space)
    change = {"status": {"state": "running", "step": 3}, "spec": {"run": "false"}}
    shown = api.patch(TRAINING_JOBS, "one", change, space, part="status")
    assert shown["spec"]["run"] == "true"
    assert shown["status"] == {"state": "running", "step": 3}
    generation = shown["metadata"]["generation"]
    changed = api.patch(TRAINING_JOBS, "one", {"spec": {"priority": 3}, "status": None}, space)
    assert changed["status"]["state"] == "running"
    assert changed["metadata"]["generation"] == generation + 1


def test_errors_have_names(in_memory: tuple[KubeServer, Cluster], tmp_path: Path) -> None:
    server, api = in_memory
    server.busy = 1
    with pytest.raises(Unavailable) as busy:
        api.list(PODS)
    assert (busy.value.status, busy.value.retry_s) == (429, 0.0)
    config = server.kubeconfig(tmp_path)
    config.write_text(config.read_text(encoding="utf-8").replace(server.token, "another"))
    with pytest.raises(Denied):
        Cluster(config).list(PODS)
    config.write_text(config.read_text(encoding="utf-8").replace(server.url, "https://127.0.0.1:9"))
    with pytest.raises(Unavailable):
        Cluster(config).list(PODS)
    unknown = Resource("gangline.dev", "v1", "nothings", "Nothing", namespaced=True)
    with pytest.raises(NotFound):
        api.list(unknown)


def test_a_status_is_guarded_by_its_version_alone(api: Cluster, space: str) -> None:
    old = create(api, TRAINING_JOBS, job("one"), space)["metadata"]["resourceVersion"]
    unguarded = {"metadata": {"uid": str(uuid.uuid4())}, "status": {"step": 1}}
    shown = api.patch(TRAINING_JOBS, "one", unguarded, space, part="status")
    assert shown["status"]["step"] == 1
    late = {"metadata": {"resourceVersion": old}, "status": {"step": 2}}
    with pytest.raises(Conflict):
        api.patch(TRAINING_JOBS, "one", late, space, part="status")
