"""TrainingJob objects with the operator's process and the jobs of a gateway.

The API server is the in-memory one, and in `make test-kube` also a real one.
`GANGLINE_TRAINING_JOBS=1000 GANGLINE_OPERATOR_KILLS=20` are the numbers of the long run.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gangline_kube.service.api import Cluster
from support.fakes.job_gateway import JobGateway
from support.fakes.kube_api import KubeServer
from support.fixtures.kube import PROGRAM
from support.harnesses.kube_operator import OperatorProcess, TrainingJobs

OBJECTS = int(os.environ.get("GANGLINE_TRAINING_JOBS", "30"))
KILLS = int(os.environ.get("GANGLINE_OPERATOR_KILLS", "1"))
SERVERS = ["in-memory", *(["real"] if PROGRAM else [])]


@dataclass
class Stand:
    kubeconfig: Path
    gateway: JobGateway
    operator: OperatorProcess
    objects: TrainingJobs
    folder: Path


@pytest.fixture(scope="module", params=SERVERS)
def kubeconfig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    if request.param == "real":
        yield request.getfixturevalue("control_plane").kubeconfig
        return
    with KubeServer() as server:
        yield server.kubeconfig(tmp_path_factory.mktemp("kube"))


@pytest.fixture(scope="module")
def stand(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("operator")
    with (
        JobGateway() as gateway,
        TrainingJobs(Cluster(kubeconfig)) as objects,
        operator_process(kubeconfig, gateway, objects, folder) as operator,
    ):
        yield Stand(kubeconfig, gateway, operator, objects, folder)


def operator_process(
    kubeconfig: Path, gateway: JobGateway, objects: TrainingJobs, folder: Path
) -> OperatorProcess:
    own = {"GANGLINE_KUBE_NAMESPACES": objects.space}
    return OperatorProcess(kubeconfig, gateway.url, folder, **own)


def test_an_object_is_submitted_mirrored_and_left_alone_after_its_end(stand: Stand) -> None:
    stand.objects.create("train", priority=20)
    stand.operator.wait("submitted", lambda: stand.objects.states().get("train") == "pending")
    job_id = stand.objects.statuses()["train"]["jobId"]
    assert stand.gateway.jobs[job_id]["reason"] == stand.objects.statuses()["train"]["reason"]
    stand.gateway.set("running", job_id)
    stand.operator.wait("running", lambda: stand.objects.states()["train"] == "running")
    stand.objects.change("train", priority=5)
    stand.operator.wait("priority", lambda: stand.gateway.priorities.get(job_id) == 5)
    stand.gateway.set("succeeded", job_id)
    stand.operator.wait("ended", lambda: bool(stand.objects.statuses()["train"]["ended"]))
    stand.objects.delete("train")
    stand.operator.wait("gone", lambda: "train" not in stand.objects.states())
    assert stand.gateway.cancelled == []
    again = stand.objects.create("train")
    stand.operator.wait("again", lambda: stand.objects.states().get("train") == "pending")
    assert stand.objects.statuses()["train"]["jobId"] != job_id
    assert again["metadata"]["uid"]


def test_deleting_an_object_cancels_its_job(stand: Stand) -> None:
    stand.objects.create("cancel-me")
    stand.operator.wait("submitted", lambda: stand.objects.states().get("cancel-me") == "pending")
    job_id = stand.objects.statuses()["cancel-me"]["jobId"]
    stand.gateway.away = True
    stand.objects.delete("cancel-me")
    time.sleep(0.5)
    assert "cancel-me" in stand.objects.states()
    stand.gateway.away = False
    stand.operator.wait("gone", lambda: "cancel-me" not in stand.objects.states())
    assert stand.gateway.cancelled == [job_id]


def test_refusals_end_in_the_status(stand: Stand) -> None:
    stand.objects.create("rejected-by-quota")
    stand.objects.create("foreign", team="ads")
    stand.objects.create("has.dots")
    names = ("rejected-by-quota", "foreign", "has.dots")
    wanted = dict.fromkeys(names, "rejected")
    stand.operator.wait(
        "refused", lambda: {name: stand.objects.states().get(name) for name in names} == wanted
    )
    found = stand.objects.statuses()
    assert found["rejected-by-quota"]["reason"] == "the team has no quota"
    assert "may not ask for team ads" in found["foreign"]["reason"]
    assert found["has.dots"]["reason"].startswith("metadata.name")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")
def test_kubectl_applies_waits_and_deletes(stand: Stand, request: pytest.FixtureRequest) -> None:
    checks = "true" if "real" in request.node.name else "false"  # in memory there are no schemas

    def kubectl(*words: str, text: str | None = None) -> str:
        done = subprocess.run(
            ["kubectl", f"--kubeconfig={stand.kubeconfig}", "-n", stand.objects.space, *words],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "HOME": str(stand.folder)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    item = """
apiVersion: gangline.dev/v1
kind: TrainingJob
metadata: {name: by-kubectl}
spec: {team: nlp, run: "true", resources: {gpus: 1}}
"""
    kubectl("apply", f"--validate={checks}", "-f", "-", text=item)
    path = "jsonpath={.status.state}"
    kubectl("wait", "tj/by-kubectl", f"--for={path}=pending", "--timeout=30s")
    stand.gateway.set("succeeded")
    kubectl("wait", "tj/by-kubectl", f"--for={path}=succeeded", "--timeout=30s")
    assert "by-kubectl" in kubectl("get", "tj")
    kubectl("delete", "tj", "by-kubectl", "--timeout=30s")


def test_kills_of_the_operator_lose_and_double_nothing(kubeconfig: Path, tmp_path: Path) -> None:
    seed = random.Random(28)
    with (
        JobGateway() as gateway,
        TrainingJobs(Cluster(kubeconfig)) as objects,
        operator_process(kubeconfig, gateway, objects, tmp_path) as operator,
    ):
        objects.create("first")
        operator.wait("first", lambda: bool(objects.statuses().get("first")))
        objects.delete("first")
        operator.wait("first gone", lambda: "first" not in objects.statuses())
        began = time.monotonic()
        names = [f"job-{index}" for index in range(OBJECTS)]
        parts = [names[at :: KILLS + 1] for at in range(KILLS + 1)]
        gone = {"first"}
        for turn, part in enumerate(parts):
            some = len(gateway.submitted) + seed.randint(1, len(part))
            for name in part:
                objects.create(name)
            if turn < KILLS:
                operator.wait("some", lambda some=some: len(gateway.submitted) >= some)
                for name in seed.sample(part, max(1, len(part) // 10)):
                    objects.delete(name)
                    gone.add(name)
                operator.kill()
                operator.start()
        left = set(names) - gone
        operator.wait(
            "all answered",
            lambda: (
                all(status.get("jobId") for status in objects.statuses().values())
                and objects.statuses().keys() == left
            ),
            limit_s=300,
        )
        took_s = time.monotonic() - began
        print(f"{OBJECTS} objects, {KILLS} kills: {took_s:.1f} s")
        assert set(gateway.submitted.values()) == {1}
        known = {job["name"]: job_id for job_id, job in gateway.jobs.items()}
        assert known.keys() >= left
        assert {known[name] for name in gone & known.keys()} == set(gateway.cancelled)
        gateway.set("succeeded")
        operator.wait(
            "all ended",
            lambda: all(status["ended"] for status in objects.statuses().values()),
            limit_s=300,
        )
