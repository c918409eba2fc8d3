"""The tree of teams: which team is above which, the limits on the way up, and whether it is sound.

Pure functions over `{name: TeamConfig}`, used by all readers of teams. A refused tree never gets
into a log, yet each walk here ends also on a broken one: an unknown parent is taken as none, and no
team is visited twice.

Cost: the depth of the tree for one team; the number of teams for a whole tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol, TypeVar

from gangline_schemas.gpus import covered
from gangline_schemas.team_limits import TeamConfig

Teams = Mapping[str, TeamConfig]


class Placed(Protocol):
    """An entry with a place in the tree."""

    @property
    def parent(self) -> str | None:
        """The team above; None for a root."""
        ...


PlacedT = TypeVar("PlacedT", bound=Placed)


@dataclass(frozen=True, slots=True)
class TreeProblem:
    """The problem of one field of one team, and the way out."""

    team: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"team '{self.team}': {self.field}: {self.message}"


def upwards(teams: Mapping[str, PlacedT], team: str) -> dict[str, PlacedT]:
    """By name the team itself, then those above it up to its root; {} for one that is not known."""
    found: dict[str, PlacedT] = {}
    name: str | None = team
    while name is not None and name not in found and (known := teams.get(name)) is not None:
        found[name] = known
        name = known.parent
    return found


def line(teams: Mapping[str, PlacedT], team: str) -> tuple[PlacedT, ...]:
    """The team itself, then those above it up to its root; () for a team that is not known."""
    return tuple(upwards(teams, team).values())


def tightest(teams: Teams, team: str) -> TeamConfig:
    """The team of its line with the lowest ceiling, the nearest of equals. KeyError if unknown."""
    if team not in teams:
        raise KeyError(team)
    return min(line(teams, team), key=lambda config: config.ceiling)


def rolled_up(teams: Teams, own: Mapping[str, int]) -> dict[str, int]:
    """For each team, its own amount and those of all teams below it."""
    total = dict.fromkeys(teams, 0)
    for team, amount in own.items():
        for config in line(teams, team):
            total[config.team] += amount
    return total


def walk(parents: Mapping[str, str | None]) -> Iterator[tuple[str, int]]:
    """(name, depth) from each root downwards, siblings by name.

    `parents` may be a part of a tree: a team whose parent is not in it counts as a root. Teams in a
    circle are below no root, so they are left out.
    """
    below: dict[str | None, list[str]] = {}
    for name in sorted(parents, reverse=True):
        parent = parents[name]
        below.setdefault(parent if parent in parents else None, []).append(name)
    stack = [(root, 0) for root in below.get(None, ())]
    while stack:
        name, depth = stack.pop()
        yield name, depth
        stack += [(child, depth + 1) for child in below.get(name, ())]


@dataclass(frozen=True, slots=True)
class TypeLimit:
    """The most GPUs (None: no limit) that a team may use of a name as it is written there."""

    gpu_type: str
    gpu_limit: int | None
    team: str

    @property
    def models(self) -> tuple[str, ...]:
        """The exact models that count together against it."""
        return covered(self.gpu_type)


def type_limits(teams: Teams, team: str) -> dict[str, tuple[TypeLimit, ...]] | None:
    """The limits of each exact GPU model that the team may use, its own first, then upwards.

    None when no team of its line names models: all are allowed.
    """
    allowed: dict[str, tuple[TypeLimit, ...]] | None = None
    for config in line(teams, team):
        if not config.gpu_types:
            continue
        here: dict[str, tuple[TypeLimit, ...]] = {}
        for item in config.gpu_types:
            limit = TypeLimit(item.gpu_type, item.gpu_limit, config.team)
            for model in limit.models:
                here[model] = (*here.get(model, ()), limit)
        if allowed is None:
            allowed = here
        else:
            allowed = {
                model: limits + here[model] for model, limits in allowed.items() if model in here
            }
    return allowed


def lowest(limits: Iterable[TypeLimit]) -> TypeLimit:
    """The limit with the fewest GPUs, the nearest team's of equals."""
    return min(limits, key=lambda one: inf if one.gpu_limit is None else one.gpu_limit)


def type_names(allowed: Mapping[str, tuple[TypeLimit, ...]]) -> str:
    """The names that a team may use, as the nearest team writes them."""
    return ", ".join(sorted({limits[0].gpu_type for limits in allowed.values()})) or "none"


def owed(teams: Teams) -> dict[str, int]:
    """GPUs guaranteed to each team: its own guarantee, or the sum below it where that is more."""
    found: dict[str, int] = {name: config.gpu_guarantee for name, config in teams.items()}
    order = [name for name, _ in walk({name: config.parent for name, config in teams.items()})]
    below = dict.fromkeys(teams, 0)
    for name in reversed(order):
        found[name] = max(found[name], below[name])
        parent = teams[name].parent
        if parent in below:
            below[parent] += found[name]
    return found


def problems(teams: Iterable[TeamConfig]) -> list[TreeProblem]:
    """All problems of a whole tree; [] when it is sound.

    Parents exist and form no circle. The guarantees of a team's children fit into its own guarantee
    (without one: into its limit). No limit is above the parent's.
    """
    tree = {config.team: config for config in teams}
    found = [*_missing_parents(tree), *_circles(tree)]
    if found:
        return found
    for config in tree.values():
        if config.parent is not None:
            found += _above_parent(tree, config, tree[config.parent])
    return [*found, *_guarantees(tree)]


def _missing_parents(tree: Teams) -> Iterator[TreeProblem]:
    for config in tree.values():
        if config.parent is not None and config.parent not in tree:
            known = ", ".join(sorted(tree.keys() - {config.team})) or "none"
            yield TreeProblem(
                config.team,
                "parent",
                f"there is no team '{config.parent}' (known: {known}); add it, or leave parent out",
            )


def _circles(tree: Teams) -> Iterator[TreeProblem]:
    done: set[str] = set()
    for config in tree.values():
        path: list[str] = []
        name: str | None = config.team
        while name is not None and name in tree and name not in done and name not in path:
            path.append(name)
            name = tree[name].parent
        if name in path:
            circle = " > ".join([*path[path.index(name) :], name])
            yield TreeProblem(
                name,
                "parent",
                f"is below itself: {circle}; give one of them another parent or none",
            )
        done.update(path)


def _above_parent(tree: Teams, config: TeamConfig, parent: TeamConfig) -> Iterator[TreeProblem]:
    if config.gpu_limit > parent.gpu_limit:
        yield TreeProblem(
            config.team,
            "gpu_limit",
            f"{config.gpu_limit} is above the {parent.gpu_limit} of its parent '{parent.team}'; "
            "lower it, or raise the parent's first",
        )
    hours, most = config.gpu_hours_per_month, parent.gpu_hours_per_month
    if hours is not None and most is not None and hours > most:
        yield TreeProblem(
            config.team,
            "gpu_hours_per_month",
            f"{hours:g} is above the {most:g} of its parent '{parent.team}'; "
            "lower it, or raise the parent's first",
        )
    allowed = type_limits(tree, parent.team)
    if allowed is None:
        return
    for item in config.gpu_types:
        name = item.gpu_type
        known = [allowed[model] for model in covered(name) if model in allowed]
        if not known:
            yield TreeProblem(
                config.team,
                "gpu_types",
                f"{name} is not among those of its parent '{parent.team}' "
                f"({type_names(allowed)}); drop it, or allow it to the parent first",
            )
            continue
        each = [*dict.fromkeys(map(lowest, known))]
        limit, owner = sum(one.gpu_limit or 0 for one in each), each[0].team
        bounded = all(one.gpu_limit is not None for one in each)
        if bounded and item.gpu_limit is not None and item.gpu_limit > limit:
            yield TreeProblem(
                config.team,
                "gpu_types",
                f"{item.gpu_limit} of {name} is above the {limit} of team '{owner}'; "
                "lower it, or raise that first",
            )


def _guarantees(tree: Teams) -> Iterator[TreeProblem]:
    each = owed(tree)
    below: dict[str, list[str]] = {}
    for config in tree.values():
        if config.parent is not None and each[config.team]:
            below.setdefault(config.parent, []).append(config.team)
    for parent, children in below.items():
        field = "gpu_guarantee" if tree[parent].gpu_guarantee else "gpu_limit"
        room = tree[parent].gpu_guarantee or tree[parent].gpu_limit
        total = sum(each[child] for child in children)
        if total > room:
            shown = " + ".join(f"{child} {each[child]}" for child in sorted(children))
            yield TreeProblem(
                parent,
                "gpu_guarantee",
                f"the teams below are guaranteed {total} ({shown}), above its {field} of {room}; "
                f"lower theirs, or raise its {field} first",
            )
