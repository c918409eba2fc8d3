"""The grammar of the scenario tables: strict, small, and described here in full.

A table is a list of scenarios. Unknown keys fail with the file, the scenario and the key.

```
    - name: what the scheduler does, as a sentence
      given:
        nodes: {n1..n4: {gpus: 8, rack: r1}}          # a range makes one of each name
        teams: {nlp: {limit: 64, guarantee: 16}}      # default: nlp and cv, 64 GPUs each
        running: {a: {gpus: 4, at: n1, since: 2 h}}   # placed there, whatever the policy says
        policy: {reservation: easy}                   # settings of the scheduler, by their names
      when:
        - submit: {b: {gpus: 16}}                     # one action a step, see `Step`
          then: {waits: {b: capacity}}                # of this step alone
        - after: 40 min                               # time passes; alone: and a tick follows
      then:                                           # of all steps together
        starts: {b: {nodes: {n1: 4, n2: 4}, level: rack}}
```

Expectations (`Then`) say exactly what happened or is so; what is not said is not checked.
- what was decided: `starts` (a list: in this order; a mapping: with details), `stops` (asked to
  stop, and why), `ends` (in which state). Each names all jobs of its kind: `starts: []` is none.
- how GPUs are used afterwards: `runs` (jobs, on how many), `free` (of nodes), `reserved_gpus`
  (those that are being freed for a job), `used` (of teams, with the teams below).
- how jobs wait afterwards: `waits` (why), `queue` (all of them, in order), `value` (the fair-share
  formula, lowest first), `due` (of the drf order), `reserved` (for which job, where, and when it
  starts).

Ranks of a gang report as soon as it starts, unless its job is `silent`. Durations: 90 s,
5 min, 2 h.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gangline_schemas.isolation import Isolation

_UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_RANGE = re.compile(r"^([a-z-]*)(\d+)\.\.([a-z-]*)(\d+)$")


def _duration(value: object) -> timedelta:
    match = re.fullmatch(r"([\d.]+) (s|min|h|d)", str(value))
    if match is None:
        raise ValueError(f"'{value}' is no duration, such as 90 s, 5 min, 2 h or 1 d")
    return timedelta(seconds=float(match[1]) * _UNITS_S[match[2]])


def _spread(value: object) -> object:
    """`n1..n4: X` is n1: X, n2: X, n3: X, n4: X."""
    if not isinstance(value, dict):
        return value
    return {name: row for key, row in value.items() for name in names(str(key))}


def _listed(value: object) -> object:
    if isinstance(value, str):
        return names(value)
    if isinstance(value, list):
        return [name for item in value for name in names(str(item))]
    return value


def names(text: str) -> list[str]:
    """The names of a range, or the one name."""
    match = _RANGE.match(text)
    if match is None or match[1] != match[3]:
        return [text]
    return [f"{match[1]}{number}" for number in range(int(match[2]), int(match[4]) + 1)]


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Names = Annotated[list[str], BeforeValidator(_listed)]
Many = BeforeValidator(_spread)


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeRow(_Row):
    """A node. `model` is that of all its GPUs, or so many of each; with `gpus: 0` it has none."""

    gpus: int = Field(default=8, ge=0)
    model: str | dict[str, int] = "h100"
    rack: str = "r1"
    block: str = "b1"
    cpus: float = 128
    memory_gb: float = 1024
    labels: dict[str, str] = {}
    isolation: Isolation = Isolation.NONE
    incarnation: str = "i1"


class TeamRow(_Row):
    """A team's limits. `models`: those it may use, and how many of each (null: no limit)."""

    limit: int = 64
    cpu_limit: float | None = None
    guarantee: int = 0
    borrow: int = 0
    parent: str | None = None
    weight: float = 1.0
    surplus: Literal["keep", "reclaim_by_weight"] | None = None
    models: dict[str, int | None] = {}


class JobRow(_Row):
    """A job's spec. `within`: the level that it requires, `near`: the one that it prefers.

    `tensor`: of its `parallel`, with `shard: auto`. `cpus`: it has no GPUs, and these and
    `memory_gb` on each of its `nodes`.
    """

    cpus: float | None = None
    memory_gb: float = 1.0
    nodes: int = 1

    gpus: int = 1
    gpus_per_worker: int | None = None
    tensor: int | None = None
    min_gpus: int | None = None
    gpu_counts: list[int] | None = None
    team: str = "nlp"
    priority: int = 50
    preemptible: bool = False
    models: list[str] = []
    cpus_per_gpu: float = 1.0
    memory_per_gpu_gb: float = 1.0
    within: str | None = None
    near: str | None = None
    expected: Duration | None = None
    limit: Duration | None = None
    grace: Duration = timedelta(seconds=120)
    saves_every: Duration = timedelta(minutes=10)
    labels: dict[str, str] = {}
    silent: bool = False


class RunningRow(JobRow):
    """A job that runs `at` a node, or with so many ranks on each; `saved`: its checkpoint's age."""

    at: str | dict[str, int]
    since: Duration = timedelta(0)
    saved: Duration | None = None


class Given(_Row):
    """How it is before anything happens."""

    nodes: Annotated[dict[str, NodeRow], Many] = {}
    teams: dict[str, TeamRow] = {"nlp": TeamRow(), "cv": TeamRow()}
    running: Annotated[dict[str, RunningRow], Many] = {}
    policy: dict[str, Any] = {}


class FailRow(_Row):
    """What the fault manager says of a gang's failure."""

    cause: str = "process"
    action: Literal["restart", "fail"] = "restart"
    nodes: list[str] = []


class StartRow(_Row):
    """Where a job started, with so many ranks. `models`: how many GPUs of which."""

    nodes: dict[str, int] | None = None
    level: str | None = None
    gpus: int | None = None
    models: dict[str, int] | None = None
    from_step: int | None = None


class WaitRow(_Row):
    """Why a job waits: the reason's code, and a part of its text."""

    code: str
    says: str = ""


class StopRow(_Row):
    """Why a gang was asked to stop; `to`: the GPUs that it will resume on."""

    reason: str
    to: int | None = None


class ReservedRow(_Row):
    """When a reservation starts, from now, and on which nodes."""

    start: Duration
    nodes: list[str] | None = None


class Then(_Row):
    """What must have been decided, and be so."""

    starts: Annotated[dict[str, StartRow | None], Many] | list[str] | None = None
    stops: dict[str, StopRow | str] | None = None
    ends: dict[str, str] | None = None
    waits: Annotated[dict[str, WaitRow | str], Many] = {}
    runs: Annotated[dict[str, int], Many] = {}
    free: Annotated[dict[str, int], Many] = {}
    reserved_gpus: dict[str, dict[str, int]] | None = None
    used: dict[str, int] = {}
    queue: list[str] | None = None
    value: dict[str, float] = {}
    due: dict[str, float] = {}
    reserved: dict[str, ReservedRow] | None = None


class Step(_Row):
    """Time passes (`after`), then one thing happens; a tick when nothing else does.

    `save`: a checkpoint of this step was committed. `gone`: the ranks of a gang that was asked to
    stop have stopped. `team`: new limits. `spent`: a team's budget is (true) or isn't any more.
    """

    after: Duration = timedelta(0)
    submit: Annotated[dict[str, JobRow], Many] | None = None
    finish: Names | None = None
    gone: Names | None = None
    save: dict[str, int] | None = None
    restore: dict[str, int] | None = None
    cancel: Names | None = None
    fail: dict[str, FailRow] | None = None
    prioritize: dict[str, int] | None = None
    join: Annotated[dict[str, NodeRow], Many] | None = None
    node_fails: Names | None = None
    node_recovers: Names | None = None
    leave: Names | None = None
    drain: Names | None = None
    cordon: Names | None = None
    undrain: Names | None = None
    team: dict[str, TeamRow] | None = None
    spent: dict[str, bool] | None = None
    then: Then | None = None

    def action(self) -> tuple[str, Any] | None:
        """What happens; None: a tick. Raises ValueError for two things at once."""
        given = [
            (name, value)
            for name in type(self).model_fields
            if name not in {"after", "then"} and (value := getattr(self, name)) is not None
        ]
        if len(given) > 1:
            raise ValueError(f"one action a step, not {' and '.join(name for name, _ in given)}")
        return given[0] if given else None

    def model_post_init(self, _: object) -> None:
        """Refuse a step of two actions as it is read."""
        self.action()


class Scenario(_Row):
    """One row of a table."""

    name: str
    given: Given = Given()
    when: list[Step] = Field(min_length=1)
    then: Then = Then()


class _Loader(yaml.SafeLoader):
    """YAML in which no key stands twice: a second one would silently replace the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.YAMLError(f"'{key.value}' stands twice{key.start_mark}")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class TableError(Exception):
    """A table is not in the grammar: file, scenario, key, and what is wrong."""


def read(path: Path) -> Iterator[Scenario]:
    """The scenarios of one file. Raises TableError."""
    return parse(path.read_text(encoding="utf-8"), path.name)


def parse(text: str, file: str) -> Iterator[Scenario]:
    """The scenarios of a table. Raises TableError."""
    try:
        rows = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise TableError(f"{file}: {error}") from None
    for number, row in enumerate(rows, start=1):
        name = row.get("name", f"number {number}") if isinstance(row, dict) else f"number {number}"
        try:
            yield Scenario.model_validate(row)
        except ValidationError as error:
            raise TableError(f"{file}: {name}: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    item = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
