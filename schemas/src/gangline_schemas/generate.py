"""Writes the contract for readers without Python: JSON Schema per type, and AsyncAPI 3.

`python -m gangline_schemas.generate` writes schemas/generated. `--check` only compares, names each
difference and exits 1. `--publish VERSION` keeps the present schemas as a published release,
against which later changes are checked.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gangline_schemas.base import Model
from gangline_schemas.catalog import Topic, catalog, event_types
from gangline_schemas.checkpoint import CommitRecord, RankManifest
from gangline_schemas.compatibility import breaking_changes
from gangline_schemas.job import JobSpec
from gangline_schemas.study_file import StudySpec

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "generated"
PUBLISHED = ROOT / "published"
_ASKED = {Topic.REQUESTS, Topic.ADMIN, Topic.AUTOMATION}
"""Where others write and services read."""
_DOCUMENTS: dict[str, type[Model]] = {
    "job-spec": JobSpec,
    "study-spec": StudySpec,
    "rank-manifest": RankManifest,
    "commit-record": CommitRecord,
}


@cache
def json_schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema (2020-12) of every event's data by type, as consumers may read it; shared."""
    return {name: model.model_json_schema(by_alias=False) for name, model in event_types().items()}


def async_api() -> dict[str, Any]:
    """The AsyncAPI 3.0 document of all topics."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for topic, entry in catalog().items():
        channel = topic.value.removeprefix("gangline.")
        channels[channel] = {
            "address": topic.value,
            "description": f"Written by {entry.owner}. Key: {entry.key}. Kept: {entry.retention}.",
            "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in entry.types},
            "bindings": {"kafka": {"partitions": entry.partitions}},
        }
        if entry.compacted:
            policy = {"cleanup.policy": ["compact", "delete"]}
            channels[channel]["bindings"]["kafka"]["topicConfiguration"] = policy
        action = "receive" if topic in _ASKED else "send"
        operations[f"{action}-{channel}"] = {
            "action": action,
            "channel": {"$ref": f"#/channels/{channel}"},
        }
        for name in entry.types:
            messages[name] = {
                "name": name,
                "contentType": "application/json",
                "payload": {"$ref": f"json-schema/{name}.json"},
                "headers": {"$ref": "#/components/schemas/cloudEvent"},
            }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Gangline events",
            "version": "1",
            "description": "CloudEvents 1.0 in Kafka's binary mode; the value is the JSON data.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": {"cloudEvent": _cloud_event()}},
    }


def files() -> dict[Path, str]:
    """Every generated file, relative to schemas/generated, with its content."""
    found = {
        Path("json-schema") / f"{name}.json": _json(schema)
        for name, schema in json_schemas().items()
    }
    for name, model in _DOCUMENTS.items():
        found[Path("json-schema") / f"{name}.json"] = _json(model.model_json_schema(by_alias=False))
    found[Path("asyncapi.yaml")] = yaml.safe_dump(async_api(), sort_keys=False, width=100)
    return found


def differences() -> list[str]:
    """The files of schemas/generated that differ from the models, one sentence each."""
    wanted = files()
    present = {
        path.relative_to(GENERATED): path.read_text(encoding="utf-8")
        for path in GENERATED.rglob("*")
        if path.is_file()
    }
    found = [f"{path}: missing" for path in sorted(wanted.keys() - present.keys())]
    found += [f"{path}: no longer generated" for path in sorted(present.keys() - wanted.keys())]
    found += [
        f"{path}: differs"
        for path in sorted(wanted.keys() & present.keys())
        if wanted[path] != present[path]
    ]
    return found


def breaks() -> list[str]:
    """The changes of the present models that break a published release."""
    found = []
    for path in sorted(PUBLISHED.glob("*.json")):
        published = json.loads(path.read_text(encoding="utf-8"))
        found += [
            f"since {path.stem}: {change}" for change in breaking_changes(published, json_schemas())
        ]
    return found


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m gangline_schemas.generate", description=__doc__
    )
    parser.add_argument("--check", action="store_true", help="compare only; 1 when it differs")
    parser.add_argument("--publish", metavar="VERSION", help="keep the schemas as a release")
    chosen = parser.parse_args(arguments)
    if chosen.check:
        problems = differences() + breaks()
        sys.stdout.writelines(f"{problem}\n" for problem in problems)
        return 1 if problems else 0
    for path, text in files().items():
        target = GENERATED / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    if chosen.publish:
        PUBLISHED.mkdir(exist_ok=True)
        (PUBLISHED / f"{chosen.publish}.json").write_text(_json(json_schemas()), encoding="utf-8")
    return 0


def _cloud_event() -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "type": "object",
        "required": ["ce_specversion", "ce_id", "ce_source", "ce_type"],
        "properties": {
            "ce_specversion": {"const": "1.0"},
            "ce_id": text,
            "ce_source": text,
            "ce_type": text,
            "ce_subject": {**text, "description": "The job, node or team."},
            "ce_time": {**text, "format": "date-time"},
            "content-type": {"const": "application/json"},
            "traceparent": {**text, "description": "W3C trace context."},
            "ce_ganglineshard": {**text, "description": "Decision logs: the shard."},
            "ce_ganglineepoch": {**text, "description": "Decision logs: the writer's epoch."},
            "ce_ganglineseq": {**text, "description": "Decision logs: dense sequence number."},
            "ce_ganglinerelease": {**text, "description": "Decision logs: its writer's release."},
            "ce_ganglineinputs": {**text, "description": "Decision logs: inputs that moved."},
        },
    }


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
