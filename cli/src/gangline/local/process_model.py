"""A supervised process and its state: values only, no I/O."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


class SupervisorError(RuntimeError):
    """The supervisor refuses, or a process did not come up; the message says the way out."""


class ProcessState(StrEnum):
    """Where a supervised process stands."""

    WAITING = "waiting"  # for what it depends on
    STARTING = "starting"  # runs, not ready yet
    RUNNING = "running"  # runs and was ready when last asked
    BACKING_OFF = "backing-off"  # crashed, starts again soon
    EXITED = "exited"  # ended with code 0, not started again
    FAILED = "failed"  # ended otherwise, not started again
    STOPPING = "stopping"
    STOPPED = "stopped"


LIVE_STATES = frozenset({ProcessState.STARTING, ProcessState.RUNNING, ProcessState.STOPPING})


@dataclass(frozen=True)
class ProcessSpec:
    """How to run one process.

    `env` is laid over the supervisor's own environment. `ready` is asked until it is true, from
    another thread, and must return within some seconds; without it a process is ready once it runs.
    A process starts when all it depends on are ready. `restart="never"` is for a task that runs
    once. `niceness` is added to the supervisor's own: 1 to 19 yields to the others.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] | None = None
    depends_on: Sequence[str] = ()
    restart: Literal["always", "never"] = "always"
    stop_grace_s: float = 10.0
    niceness: int = 0


@dataclass(frozen=True)
class ProcessStatus:
    """One row of the status screen."""

    name: str
    pid: int | None
    state: ProcessState
    restarts: int
    uptime_s: float
    ready: bool
    exit_code: int | None = None
    waiting_for: tuple[str, ...] = ()


@dataclass(frozen=True)
class BackOff:
    """How long to wait before a crashed process starts again.

    Doubles from `first_s` up to `most_s` with each crash in a row; a process that lived
    `reset_after_s` or longer begins again at `first_s`.
    """

    first_s: float = 0.1
    most_s: float = 5.0
    reset_after_s: float = 10.0

    def crashes_in_row(self, before: int, lived_s: float) -> int:
        """Return the count of crashes in a row after one more crash."""
        return 1 if lived_s >= self.reset_after_s else before + 1

    def delay_s(self, crashes_in_row: int) -> float:
        """Return the wait after this many crashes in a row (1 or more)."""
        return min(self.most_s, self.first_s * 2.0 ** min(crashes_in_row - 1, 30))


def check_specs(known: Iterable[str], specs: Sequence[ProcessSpec]) -> None:
    """Raise SupervisorError for a name used twice, a bad name, an unknown or cyclic dependency.

    A process may depend on those known before and on any in `specs`.
    """
    names = set(known)
    for spec in specs:
        if not spec.name or not all(c.isalnum() or c in "-_." for c in spec.name):
            raise SupervisorError(f"process name {spec.name!r}: use letters, digits, '-', '_', '.'")
        if spec.name in names:
            raise SupervisorError(f"process {spec.name}: the name is taken")
        if not spec.argv:
            raise SupervisorError(f"process {spec.name}: argv is empty")
        names.add(spec.name)
    settled = set(known)
    open_specs = list(specs)
    while open_specs:
        free = [spec for spec in open_specs if settled.issuperset(spec.depends_on)]
        if not free:
            spec = open_specs[0]
            unknown = sorted(set(spec.depends_on) - names)
            why = f"unknown {', '.join(unknown)}" if unknown else "a cycle"
            raise SupervisorError(f"process {spec.name}: depends_on has {why}")
        settled.update(spec.name for spec in free)
        open_specs = [spec for spec in open_specs if spec.name not in settled]


@dataclass
class Patience:
    """How long to wait for several processes: `timeout_s` from the last that became ready."""

    timeout_s: float
    _fewest: float = field(default=math.inf, init=False)
    _until_s: float = field(default=0.0, init=False)

    def left_s(self, pending: int, now_s: float) -> float:
        """Seconds that are left at `now_s`, by one clock, while `pending` are not ready."""
        if pending < self._fewest:
            self._fewest, self._until_s = pending, now_s + self.timeout_s
        return self._until_s - now_s
