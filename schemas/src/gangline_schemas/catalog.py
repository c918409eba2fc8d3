"""The topic catalog: topics/*.yaml as values. Topics are created from it and types found by it."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from importlib import import_module, resources

import yaml
from pydantic import Field, field_validator

from gangline_schemas.base import Event, Model

_UNITS_S = {"h": 3600, "d": 86_400}


class Topic(StrEnum):
    """Names of the topics, without the prefix of the settings."""

    REQUESTS = "gangline.requests"
    ADMIN = "gangline.admin"
    AUTOMATION = "gangline.automation"
    QUOTA = "gangline.quota"
    SCHEDULING = "gangline.scheduling"
    FAULTS = "gangline.faults"
    CHECKPOINTS = "gangline.checkpoints"
    ALERTS = "gangline.alerts"
    STUDIES = "gangline.studies"
    PIPELINES = "gangline.pipelines"
    REGISTRY = "gangline.registry"
    WORKERS = "gangline.workers"
    HEARTBEATS = "gangline.heartbeats"
    STEPS = "gangline.steps"
    LOGS = "gangline.logs"
    PROGRESS = "gangline.progress"
    PARTS = "gangline.parts"
    VITALS = "gangline.vitals"
    METRICS = "gangline.metrics"
    TRIALS = "gangline.trials"
    AUDIT = "gangline.audit"
    TOKENS = "gangline.tokens"

    @property
    def dlq(self) -> str:
        """Where a consumer puts what it refused from this topic."""
        return f"{self.value}.dlq"


class TopicEntry(Model):
    """One file of the catalog."""

    topic: Topic
    owner: str
    kind: str = Field(pattern="^(log|stream)$")
    key: str
    partitions: int = Field(ge=1)
    retention: str = Field(pattern=r"^(forever|\d+[hd])$")
    compacted: bool = False
    """Of each key the newest record is kept, for `retention`: the topic is derived from others.

    Its readers pass over what they cannot read, so it has no dead letters.
    """
    types: dict[str, str]

    @field_validator("types")
    @classmethod
    def _types_exist(cls, types: dict[str, str]) -> dict[str, str]:
        for name, path in types.items():
            if _model(path).type != name:
                raise ValueError(f"{path} is not the model of {name}")
        return types

    @property
    def retention_ms(self) -> int:
        """How long records are kept, in milliseconds; -1: for ever."""
        if self.retention == "forever":
            return -1
        return int(self.retention[:-1]) * _UNITS_S[self.retention[-1]] * 1000

    @property
    def events(self) -> dict[str, type[Event]]:
        """The models of this topic by published type."""
        return {name: _model(path) for name, path in self.types.items()}


def _model(path: str) -> type[Event]:
    module, name = path.split(".")
    model: type[Event] = getattr(import_module(f"gangline_schemas.events.{module}"), name)
    return model


@cache
def catalog() -> dict[Topic, TopicEntry]:
    """All topics, in the order of `Topic`."""
    folder = resources.files("gangline_schemas") / "topics"
    found = {}
    for file in folder.iterdir():
        if file.name.endswith(".yaml"):
            entry = TopicEntry.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
            found[entry.topic] = entry
    return {topic: found[topic] for topic in Topic}


@cache
def event_types() -> dict[str, type[Event]]:
    """Every published event model by its type."""
    return {name: model for entry in catalog().values() for name, model in entry.events.items()}


@cache
def topic_of(event_type: str) -> Topic:
    """The topic that carries a type. KeyError when nothing does."""
    for entry in catalog().values():
        if event_type in entry.types:
            return entry.topic
    raise KeyError(event_type)
