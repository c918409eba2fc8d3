"""The aliases of models from which steps start, as the registry's log says."""

from __future__ import annotations

from datetime import datetime

from gangline_pipelines.core.evolve import fold
from gangline_pipelines.core.model import Alias
from gangline_pipelines.core.state import PipelinePlan, PipelineState
from gangline_schemas.base import Event
from gangline_schemas.events.pipelines import AliasNoted
from gangline_schemas.events.registry import AliasMoved, GateRemoved, GateSet
from gangline_schemas.memory import keep_newest
from gangline_schemas.mlflow_registry import MOST_ALIASES
from gangline_schemas.models import AliasedVersion

NEVER_SET = "no gate of team {team} protects {name}; apply one: `gangline models gate apply FILE`"
OF_FILES = (
    "version {version} of {model} is made of files and not of a checkpoint; promote one that "
    "was registered with `in: {{serving: ...}}` or `gangline models register`"
)


def take(plan: PipelinePlan, event: Event) -> None:
    """Note what an event of the registry changes; other events lead to nothing."""
    match event:
        case GateSet(config=gate):
            _protect(plan, gate.team, gate.model, gate.aliases)
        case GateRemoved(team=team, model=model):
            _protect(plan, team, model, ())
        case AliasMoved():
            held = Alias(event.to_version, event.checkpoint)
            if plan.state.aliases.get(_key(event.team, event.model, event.alias)) != held:
                noted = AliasNoted(
                    team=event.team, model=event.model, alias=event.alias,
                    version=event.to_version, checkpoint=event.checkpoint,
                )  # fmt: skip
                plan.add(event.model, noted)
        case _:
            pass


def find(state: PipelineState, team: str, name: str) -> tuple[AliasedVersion | None, str]:
    """The version of a `NAME@ALIAS`, or the problem with it; neither: no version has it."""
    model, _, alias = name.partition("@")
    held = state.aliases.get(_key(team, model, alias))
    if held is None:
        return None, NEVER_SET.format(team=team, name=name)
    if not held.version:
        return None, ""
    if held.checkpoint is None:
        return None, OF_FILES.format(version=held.version, model=model)
    found = AliasedVersion(
        model=model, alias=alias, version=held.version, checkpoint=held.checkpoint
    )
    return found, ""


def _protect(plan: PipelinePlan, team: str, model: str, aliases: tuple[str, ...]) -> None:
    """The aliases of a model that its gate protects. Those it did before stay where they are."""
    start = _key(team, model, "")
    before = [key.removeprefix(start) for key in plan.state.aliases if key.startswith(start)]
    for alias in before:
        if alias not in aliases:
            plan.add(model, AliasNoted(team=team, model=model, alias=alias, protected=False))
    for alias in aliases:
        if alias not in before:
            plan.add(model, AliasNoted(team=team, model=model, alias=alias))


def _key(team: str, model: str, alias: str) -> str:
    return f"{team}/{model}@{alias}"


@fold.on(AliasNoted)
def _(state: PipelineState, event: AliasNoted, _at: datetime) -> None:
    key = _key(event.team, event.model, event.alias)
    state.aliases.pop(key, None)
    if event.protected:
        state.aliases[key] = Alias(event.version, event.checkpoint)
        keep_newest(state.aliases, MOST_ALIASES)
