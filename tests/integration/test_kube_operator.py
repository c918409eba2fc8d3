"""TrainingJob objects with the operator's process, an in-memory API server and jobs of a gateway.

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

from support.fakes.job_gateway import JobGateway
from support.fakes.kube_api import KubeServer
from support.harnesses.kube_operator import (
    OperatorProcess,
    change,
    create,
    delete,
    prepared,
    statuses,
)

OBJECTS = int(os.environ.get("GANGLINE_TRAINING_JOBS", "30"))
KILLS = int(os.environ.get("GANGLINE_OPERATOR_KILLS", "1"))


@dataclass
class Stand:
    server: KubeServer
    gateway: JobGateway
    operator: OperatorProcess
    folder: Path

    def states(self) -> dict[str, str]:
        return {name: status.get("state", "") for name, status in statuses(self.server).items()}


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("operator")
    with KubeServer() as server, JobGateway() as gateway:
        prepared(server)
        with OperatorProcess(server, gateway.url, folder) as operator:
            yield Stand(server, gateway, operator, folder)


def test_an_object_is_submitted_mirrored_and_left_alone_after_its_end(stand: Stand) -> None:
    create(stand.server, "train", priority=20)
    stand.operator.wait("submitted", lambda: stand.states().get("train") == "pending")
    job_id = statuses(stand.server)["train"]["jobId"]
    assert stand.gateway.jobs[job_id]["reason"] == statuses(stand.server)["train"]["reason"]
    stand.gateway.set("running", job_id)
    stand.operator.wait("running", lambda: stand.states()["train"] == "running")
    change(stand.server, "train", priority=5)
    stand.operator.wait("priority", lambda: stand.gateway.priorities.get(job_id) == 5)
    stand.gateway.set("succeeded", job_id)
    stand.operator.wait("ended", lambda: bool(statuses(stand.server)["train"]["ended"]))
    delete(stand.server, "train")
    stand.operator.wait("gone", lambda: "train" not in stand.states())
    assert stand.gateway.cancelled == []
    again = create(stand.server, "train")
    stand.operator.wait("again", lambda: stand.states().get("train") == "pending")
    assert statuses(stand.server)["train"]["jobId"] != job_id
    assert again["metadata"]["uid"]


def test_deleting_an_object_cancels_its_job(stand: Stand) -> None:
    create(stand.server, "cancel-me")
    stand.operator.wait("submitted", lambda: stand.states().get("cancel-me") == "pending")
    job_id = statuses(stand.server)["cancel-me"]["jobId"]
    stand.gateway.away = True
    delete(stand.server, "cancel-me")
    time.sleep(0.5)
    assert "cancel-me" in stand.states()
    stand.gateway.away = False
    stand.operator.wait("gone", lambda: "cancel-me" not in stand.states())
    assert stand.gateway.cancelled == [job_id]


def test_refusals_end_in_the_status(stand: Stand) -> None:
    create(stand.server, "rejected-by-quota")
    create(stand.server, "foreign", team="ads")
    create(stand.server, "has.dots")
    names = ("rejected-by-quota", "foreign", "has.dots")
    wanted = dict.fromkeys(names, "rejected")
    stand.operator.wait(
        "refused", lambda: {name: stand.states().get(name) for name in names} == wanted
    )
    found = statuses(stand.server)
    assert found["rejected-by-quota"]["reason"] == "the team has no quota"
    assert "may not ask for team ads" in found["foreign"]["reason"]
    assert found["has.dots"]["reason"].startswith("metadata.name")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")
def test_kubectl_applies_waits_and_deletes(stand: Stand) -> None:
    config = stand.folder / "kubeconfig"

    def kubectl(*words: str, text: str | None = None) -> str:
        done = subprocess.run(
            ["kubectl", f"--kubeconfig={config}", *words],
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
    kubectl("apply", "--validate=false", "-f", "-", text=item)
    path = "jsonpath={.status.state}"
    kubectl("wait", "tj/by-kubectl", f"--for={path}=pending", "--timeout=30s")
    stand.gateway.set("succeeded")
    kubectl("wait", "tj/by-kubectl", f"--for={path}=succeeded", "--timeout=30s")
    assert "by-kubectl" in kubectl("get", "tj")
    kubectl("delete", "tj", "by-kubectl", "--timeout=30s")


def test_kills_of_the_operator_lose_and_double_nothing(tmp_path: Path) -> None:
    seed = random.Random(28)
    with KubeServer() as server, JobGateway() as gateway:
        prepared(server)
        with OperatorProcess(server, gateway.url, tmp_path) as operator:
            operator.wait("first", lambda: "GET /apis" in server.requests)
            began = time.monotonic()
            names = [f"job-{index}" for index in range(OBJECTS)]
            parts = [names[at :: KILLS + 1] for at in range(KILLS + 1)]
            gone: set[str] = set()
            for turn, part in enumerate(parts):
                for name in part:
                    create(server, name)
                if turn < KILLS:
                    some = len(gateway.submitted) + seed.randint(1, len(part))
                    operator.wait("some", lambda some=some: len(gateway.submitted) >= some)
                    for name in seed.sample(part, max(1, len(part) // 10)):
                        delete(server, name)
                        gone.add(name)
                    operator.kill()
                    operator.start()
            left = set(names) - gone
            operator.wait(
                "all answered",
                lambda: (
                    all(status.get("jobId") for status in statuses(server).values())
                    and statuses(server).keys() == left
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
                lambda: all(status["ended"] for status in statuses(server).values()),
                limit_s=300,
            )
