"""The definition of TrainingJob at a real API server: its schema, patterns and rules."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline_kube.core.crd import training_job_crd
from gangline_kube.core.resource import GROUP, NAMESPACES, TRAINING_JOBS, Object
from gangline_kube.core.training_job import LEFT_OUT
from gangline_kube.service.api import Cluster, KubeError
from gangline_schemas.job import JobSpec
from gangline_schemas.yaml_core import load_yaml
from kube.plane import ControlPlane
from support.clients.kube_objects import (
    CRDS,
    create,
    define_training_jobs,
    delete,
    new_namespace,
    try_create,
)
from support.fixtures.kube import needs_kube

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB_FILES = [
    path
    for path in sorted(EXAMPLES.rglob("*.yaml"))
    if "resources" in load_yaml(path.read_text("utf-8"))
]
SPEC = {"team": "nlp", "run": "true", "resources": {"gpus": 1}}
pytestmark = needs_kube


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane) -> Cluster:
    found = control_plane.cluster()
    define_training_jobs(found)
    return found


@pytest.fixture(scope="module")
def space(api: Cluster) -> Iterator[str]:
    name = new_namespace(api)
    yield name
    delete(api, NAMESPACES, name)


def job(**spec: Any) -> Object:
    kind = {"apiVersion": f"{GROUP}/v1", "kind": TRAINING_JOBS.kind}
    return kind | {"metadata": {"name": "job"}, "spec": {**SPEC, **spec}}


@pytest.mark.parametrize("path", JOB_FILES, ids=[path.stem for path in JOB_FILES])
def test_a_job_file_s_fields_are_an_object_s(api: Cluster, space: str, path: Path) -> None:
    fields = load_yaml(path.read_text("utf-8"))
    whole = JobSpec.model_validate({"team": "nlp", **fields}).data()
    for given in (fields, whole):
        spec = {name: value for name, value in given.items() if name not in LEFT_OUT}
        made = try_create(api, TRAINING_JOBS, job() | {"spec": {"team": "nlp", **spec}}, space)
        assert made["spec"] == {"team": "nlp", **spec}


@pytest.mark.parametrize(
    ("spec", "status", "field"),
    [
        ({"seed": -1}, 422, "spec.seed"),
        ({"prioritty": 3}, 400, "spec.prioritty"),
        ({"image": "a\u2028b"}, 422, "spec.image"),
        ({"team": "A B"}, 422, "spec.team"),
        ({"resources": {"gpus": -1}}, 422, "spec.resources.gpus"),
    ],
    ids=["seed", "unknown", "control character", "team", "number"],
)
def test_what_no_job_has_is_refused(
    api: Cluster, space: str, spec: dict[str, Any], status: int, field: str
) -> None:
    with pytest.raises(KubeError) as refused:
        try_create(api, TRAINING_JOBS, job(**spec), space)
    assert (refused.value.status, field in str(refused.value)) == (status, True)


def test_a_job_keeps_its_team(api: Cluster, space: str) -> None:
    create(api, TRAINING_JOBS, job(), space)
    api.patch(TRAINING_JOBS, "job", {"spec": {"priority": "high"}}, space)
    with pytest.raises(KubeError, match="a job keeps its team"):
        api.patch(TRAINING_JOBS, "job", {"spec": {"team": "vision"}}, space)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")
def test_a_release_s_definition_replaces_the_one_before(
    control_plane: ControlPlane, api: Cluster, tmp_path: Path
) -> None:
    """The command of docs/guides/kubernetes.md."""
    file = EXAMPLES.parent / "deploy" / "kubernetes" / "crds" / "trainingjobs.yaml"
    name = training_job_crd()["metadata"]["name"]
    old = {"spec": {"names": {"shortNames": ["tj", "older"]}}}
    api.patch(CRDS, name, old)
    subprocess.run(
        [
            "kubectl",
            f"--kubeconfig={control_plane.kubeconfig}",
            *("apply", "--server-side", "--force-conflicts", "-f", str(file)),
        ],
        check=True,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert api.get(CRDS, name)["spec"]["names"]["shortNames"] == ["tj"]
