"""The published contract: examples, generated files, compatibility."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gangline_schemas import generate
from gangline_schemas.catalog import Topic, catalog, event_types, topic_of
from gangline_schemas.compatibility import breaking_changes

EXAMPLES = Path(generate.ROOT) / "examples"


@pytest.mark.parametrize("name", sorted(event_types()))
def test_the_golden_example_reads_and_writes_back_unchanged(name: str) -> None:
    text = (EXAMPLES / f"{name}.json").read_text(encoding="utf-8")
    event = event_types()[name].model_validate_json(text)
    assert event.data() == json.loads(text)


@pytest.mark.parametrize("name", sorted(event_types()))
def test_the_golden_example_satisfies_the_generated_schema(name: str) -> None:
    schema = json.loads((generate.GENERATED / "json-schema" / f"{name}.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(
        json.loads((EXAMPLES / f"{name}.json").read_text())
    )


def test_generated_files_are_what_the_models_say() -> None:
    assert generate.differences() == [], "run: python -m gangline_schemas.generate"


def test_published_releases_are_not_broken() -> None:
    assert list(generate.PUBLISHED.glob("*.json"))
    assert generate.breaks() == []


def test_async_api_names_every_topic_and_type() -> None:
    document = yaml.safe_load((generate.GENERATED / "asyncapi.yaml").read_text())
    assert {c["address"] for c in document["channels"].values()} == {t.value for t in Topic}
    assert set(document["components"]["messages"]) == set(event_types())


def test_every_type_has_one_topic() -> None:
    names = [name for entry in catalog().values() for name in entry.types]
    assert len(names) == len(set(names))
    assert topic_of("worker.heartbeat") is Topic.HEARTBEATS


def _old() -> dict[str, Any]:
    return {"job.submitted": generate.json_schemas()["job.submitted"]}


def _change(**changes: Any) -> dict[str, Any]:
    schema = copy.deepcopy(_old()["job.submitted"])
    job = schema["$defs"]["JobSpec"]
    for path, value in changes.items():
        if value is None:
            del job["properties"][path]
        elif path == "required":
            job["required"] = [*job["required"], *value]
        else:
            job["properties"][path] = {**job["properties"].get(path, {}), **value}
    return {"job.submitted": schema}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env": None}, "env: the field was removed"),
        ({"required": ["user_id"]}, "user_id: the field became required"),
        ({"preemptible": {"type": "string"}}, "the type changed from boolean to string"),
        ({"stop_grace_seconds": {"maximum": 60}}, "maximum fell to 60"),
        ({"priority": {"minimum": 5}}, "minimum rose to 5"),
        ({"name": {"pattern": "^x$"}}, "the pattern changed"),
        ({"strategy": {"enum": ["ddp"]}}, "no longer accepts"),
    ],
)
def test_a_breaking_change_is_refused(change: dict[str, Any], message: str) -> None:
    (problem,) = breaking_changes(_old(), _change(**change))
    assert message in problem


@pytest.mark.parametrize(
    "change",
    [
        {"note": {"type": "string"}},
        {"priority": {"maximum": 1000}},
        {"stop_grace_seconds": {"maximum": 7200}},
        {"strategy": {"enum": ["ddp", "fsdp", "deepspeed", "custom", "megatron"]}},
    ],
)
def test_a_widening_change_is_accepted(change: dict[str, Any]) -> None:
    assert breaking_changes(_old(), _change(**change)) == []


def test_a_removed_type_is_refused() -> None:
    assert breaking_changes(_old(), {}) == ["job.submitted: the type was removed"]
