"""TrainingJob objects: their jobs, their status, and their definition."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gangline_kube.core.agent_settings import agent_settings, merged_settings
from gangline_kube.core.crd import training_job_crd
from gangline_kube.core.training_job import (
    RefusedError,
    check_team,
    difference,
    refused_status,
    status_of,
    wanted,
)
from gangline_kube.crd import text
from gangline_schemas.api.jobs import JobSummary, Waiting
from gangline_schemas.job import JobSpec
from support.fakes.kube_objects import Refused, validated

ROOT = Path(__file__).parents[3]
SPEC = {"team": "nlp", "run": "true", "resources": {"gpus": 4}}


def summary(**changed: Any) -> JobSummary:
    fields = dict.fromkeys(JobSummary.model_fields)
    return JobSummary.model_construct(
        **{
            **fields,
            "job_id": "a-1",
            "state": "running",
            "reason": "",
            "attempt": 1,
            "restarts": 0,
            "gpus_allocated": 4,
            "step": 7,
            **changed,
        }
    )


def test_the_uid_decides_which_job_it_is() -> None:
    job = wanted("train", "uid-1", SPEC)
    assert job.spec.name == "train"
    assert job.job_id == wanted("train", "uid-1", {**SPEC, "priority": 3}).job_id
    assert job.job_id != wanted("train", "uid-2", SPEC).job_id
    assert job.job_id.startswith("train-")


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("a.b", SPEC, "metadata.name"),
        ("a", {**SPEC, "workdir": "."}, "spec.workdir: leave it out"),
        ("a", {**SPEC, "trial": {}}, "spec.trial: leave it out"),
        ("a", {**SPEC, "resources": {"gpus": -1}}, "spec.resources.gpus"),
        ("a", {**SPEC, "command": ["x"]}, "exactly one"),
    ],
)
def test_an_object_that_is_no_job_is_refused(name: str, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        wanted(name, "uid", spec)


def test_a_namespace_lists_its_teams() -> None:
    space = {"metadata": {"name": "ml", "annotations": {"gangline.dev/teams": "nlp, vision"}}}
    check_team(space, "vision")
    with pytest.raises(RefusedError, match="namespace ml may not ask for team ads"):
        check_team(space, "ads")
    with pytest.raises(RefusedError):
        check_team({"metadata": {"name": "bare"}}, "nlp")


def test_the_status_shows_the_job_and_stays_after_its_end() -> None:
    at = datetime(2026, 11, 26, tzinfo=UTC)
    waiting = Waiting.model_construct(code="capacity", message="needs 4 GPUs", since=at)
    shown = status_of(summary(state="pending", waiting=waiting, step=None))
    assert (shown["state"], shown["ended"], shown["reason"]) == ("pending", False, "needs 4 GPUs")
    change = difference(shown, status_of(summary()))
    assert change == {"state": "running", "reason": "", "step": 7}
    over = status_of(summary(state="succeeded", ended_at=at))
    assert (over["ended"], over["endedAt"]) == (True, "2026-11-26T00:00:00+00:00")
    assert difference(over, status_of(summary())) == {}
    assert refused_status("x" * 5000)["reason"] == "x" * 1024
    json.dumps(over)


def test_the_file_of_the_definition_is_what_is_made() -> None:
    path = ROOT / "deploy" / "kubernetes" / "crds" / "trainingjobs.yaml"
    assert path.read_text(encoding="utf-8") == text(), "python -m gangline_kube.crd > " + str(path)


def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = training_job_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def test_the_schema_is_structural() -> None:
    def walk(part: dict[str, Any], path: str) -> None:
        for word in ("$ref", "anyOf", "oneOf", "allOf", "const", "prefixItems", "title", "default"):
            assert word not in part, f"{path}: {word}"
        free = "x-kubernetes-preserve-unknown-fields" in part
        assert "type" in part or free or "x-kubernetes-int-or-string" in part, path
        assert all(each not in part.get("pattern", "") for each in ("(?", "\\u"))
        assert part.get("maximum", 0) <= 2**53
        assert not ("properties" in part and "additionalProperties" in part), path
        for name, inner in part.get("properties", {}).items():
            walk(inner, f"{path}.{name}")
        for name in ("items", "additionalProperties"):
            if isinstance(part.get(name), dict):
                walk(part[name], f"{path}.{name}")

    walk(_schema(), "")


def test_the_schema_takes_whole_jobs_and_finds_misspelt_fields() -> None:
    whole = JobSpec.model_validate(
        {
            **SPEC,
            "name": "a",
            "env": {"A": "b"},
            "hyperparameters": {"lr": 0.1, "deep": {"x": [1]}},
            "topology": {"level": "rack"},
            "max_runtime_hours": 1.5,
            "node_labels": {"disk": "nvme"},
        }
    ).data()
    spec = {name: value for name, value in whole.items() if name != "name"}
    item = {"apiVersion": "v", "kind": "k", "metadata": {}, "spec": spec}
    assert validated(item, _schema(), strict=True)["spec"] == spec
    with pytest.raises(Refused, match=r'unknown field "spec\.resources\.gpu"'):
        validated({**item, "spec": {**spec, "resources": {"gpu": 1}}}, _schema(), strict=True)
    with pytest.raises(Refused, match="team"):
        validated({**item, "spec": {**spec, "team": "A B"}}, _schema(), strict=True)


def test_an_agent_gets_its_node_s_labels() -> None:
    labels = {"rack": "r7", "nvidia.com/gpu.product": "H100", "secret": "x"}
    node = {"metadata": {"name": "n.1", "labels": labels}}
    own = agent_settings(node, "rack", "block", ["nvidia.com/*"], "shared")
    assert own == {
        "node_id": "n-1",
        "node_labels": {"nvidia.com/gpu.product": "H100", "gangline.dev/pool": "shared"},
        "rack": "r7",
    }
    without = agent_settings(node, "rack", "block", ["nvidia.com/*"], "")
    assert without["node_labels"] == {"nvidia.com/gpu.product": "H100"}
    base = {
        "store_url": "s3://x",
        "scheduler": {"order": "fair"},
        "agent": {"cpus": 4, "rack": "z"},
    }
    assert merged_settings(base, own) == {
        "store_url": "s3://x",
        "kafka": {},
        "agent": {"cpus": 4, **own},
    }
