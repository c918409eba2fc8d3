"""What a deciding service is: pure functions over its state, driven by `DeciderLoop`.

A decider never reads a clock, a random source, a file or the network. What it must remember it
writes as an event: its state is the fold of its own log and of nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar, runtime_checkable

from gangline_bus.codec import Received, UndecodableError
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic

StateT = TypeVar("StateT")
StateT_contra = TypeVar("StateT_contra", contravariant=True)


class InvariantViolated(Exception):
    """The next state would break an invariant. Nothing of the batch is written."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went on. Comes at least every tick interval, and once after a takeover."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A record of an input stream that is no valid event, offered to `decide` before the DLQ.

    `subject` is its ce_subject, "" when it has none.
    """

    error: UndecodableError
    subject: str
    event_type: str
    time: datetime


@dataclass(frozen=True, slots=True)
class EffectDone:
    """The outcome of an effect that the state asked for. `result` is the performer's value."""

    key: str
    result: object


Input = Received | Tick | Refused | EffectDone


@dataclass(frozen=True, slots=True)
class Decision:
    """An event to write to the own log, and the job, node or team that it is about."""

    subject: str
    event: Event


class Decider(Protocol[StateT]):
    """One service's decisions. `evolve` may change the state in place and return it.

    Every record of an `inputs` topic is decided once: its offset is in the transaction of what
    followed from it. `signals` topics (heartbeats) are read from their end and lead to soft state
    only: what `observe` notes is lost on a takeover and is no part of the state's hash.
    """

    name: str
    log: Topic
    inputs: tuple[Topic, ...]
    signals: tuple[Topic, ...]

    def initial(self) -> StateT:
        """The state before the first event."""

    def decide(self, state: StateT, item: Input, now: datetime) -> Sequence[Decision]:
        """What follows from one input. Never changes the state; duplicates lead to nothing.

        For a `Refused` input: [] leaves it to the DLQ.
        """

    def evolve(self, state: StateT, decision: Decision, at: datetime) -> StateT:
        """The state after an event of the own log that was decided `at` this time."""

    def observe(self, state: StateT, signal: Received, now: datetime) -> None:
        """Note a signal in the state's soft part; decisions from it are made at the next Tick."""

    def effects(self, state: StateT) -> Mapping[str, object]:
        """Work in the outside world that the state asks for, by key; {} for most services.

        The loop hands each new key to its performer once per process and feeds the result back
        as `EffectDone`; a key is asked for until an event makes it go away, so work may be done
        twice (after a crash) and must be idempotent.
        """

    def check(self, state: StateT) -> list[str]:
        """Invariants that do not hold, as sentences; [] when all is well. Called each cycle."""


@dataclass(frozen=True, slots=True)
class Recall:
    """What a takeover reads again: records of `types`, from these offsets (by partition) on."""

    topic: Topic
    types: frozenset[str]
    offsets: Mapping[int, int]


@runtime_checkable
class Recalling(Protocol[StateT_contra]):
    """A decider whose soft state is also made of inputs, so that its log need not repeat them.

    The loop gives each input to `observe` too, after what followed from it was applied. A takeover
    gives it again what `recall` names, up to the committed offset of each partition. So the soft
    state is a function of the own log and of that part of the input.
    """

    def recall(self, state: StateT_contra) -> Recall:
        """What the soft state is made of, as the state's log tells it."""
