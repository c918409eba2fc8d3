"""The state of the registry: the fold of gangline.registry and of nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from gangline_bus.plan import Plan
from gangline_registry.core.model import (
    Answer,
    DataJudgement,
    Deferred,
    GatedModel,
    Move,
    Pointer,
    Profiled,
    Promotion,
    Registered,
    Registration,
    Watch,
    alias_key,
    model_key,
    version_key,
)
from gangline_schemas.models import CheckpointOf


@dataclass(frozen=True, slots=True)
class NotedCheckpoint:
    """A promoted checkpoint that can be registered."""

    checkpoint: CheckpointOf
    at: datetime


@dataclass(slots=True)
class RegistryState:
    """Values are frozen, so that a plan branches the dicts alone.

    - `models`: by team/model. `versions`: by team/model/number. `aliases`: by team/model/alias.
    - `numbered`: the numbers of `versions` by team/model, in the order of their registration.
    - `checkpoints`: promoted ones by job/step; `steps`: theirs by job, derived from them.
    - `registrations`: open ones by number.
    - `promotions`: not judged yet, by number; `judged`: the newest others.
    - `moves`: the newest, by number. `changes`: how often what MLflow must have changed;
      `projected`: what it has. `missing`: versions that it lost.
    - `profiles`: the newest, by team/snapshot. `data`: the newest judgement by alias and dataset;
      `aged`: the version of each alias whose data are too old.
    - `deferred`: effects that failed, by key. `requests`: the newest answers.
    - `numbers`: the last number of a "registration", "promotion" and "move".
    """

    models: dict[str, GatedModel] = field(default_factory=dict)
    versions: dict[str, Registered] = field(default_factory=dict)
    numbered: dict[str, tuple[int, ...]] = field(default_factory=dict)
    aliases: dict[str, Pointer] = field(default_factory=dict)
    checkpoints: dict[str, NotedCheckpoint] = field(default_factory=dict)
    steps: dict[str, tuple[int, ...]] = field(default_factory=dict)
    registrations: dict[int, Registration] = field(default_factory=dict)
    promotions: dict[int, Promotion] = field(default_factory=dict)
    judged: dict[int, Promotion] = field(default_factory=dict)
    moves: dict[int, Move] = field(default_factory=dict)
    profiles: dict[str, Profiled] = field(default_factory=dict)
    data: dict[str, DataJudgement] = field(default_factory=dict)
    aged: dict[str, int] = field(default_factory=dict)
    deferred: dict[str, Deferred] = field(default_factory=dict)
    requests: dict[str, Answer] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    changes: int = 0
    projected: int = 0
    missing: tuple[str, ...] = ()


RegistryPlan = Plan[RegistryState, Watch]


def data_key(team: str, model: str, alias: str, dataset: str) -> str:
    """The key of a judgement of data."""
    return f"{team}/{model}/{alias}/{dataset}"


def versions_of(state: RegistryState, team: str, model: str) -> list[Registered]:
    """The versions of a model, in the order of their registration. Cost: these."""
    numbers = state.numbered.get(model_key(team, model), ())
    return [state.versions[version_key(team, model, number)] for number in numbers]


def needed_versions(state: RegistryState, team: str, model: str) -> set[int]:
    """Versions that a protected alias points to, or may roll back to; a fixed baseline too."""
    found: set[int] = set()
    gated = state.models.get(model_key(team, model))
    if gated is None:
        return found
    if gated.gate.baseline != "current":
        found.add(gated.gate.baseline)
    for alias in gated.gate.aliases:
        pointer = state.aliases[alias_key(team, model, alias)]
        found |= {pointer.version, *pointer.before}
    return found - {0}
