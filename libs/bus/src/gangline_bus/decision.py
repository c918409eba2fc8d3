"""The interface of a deciding service: pure functions over its state, driven by `DeciderLoop`.

A decider never reads a clock, a random source, a file or the network. To remember a fact it writes
an event: its state is the fold of its own log and of nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Protocol, TypeVar, runtime_checkable

from gangline_bus.codec import Received, UndecodableError
from gangline_bus.ports import TopicPartition
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, catalog

StateT = TypeVar("StateT")
SoftT = TypeVar("SoftT")
EventT = TypeVar("EventT", bound=Event)
StateT_contra = TypeVar("StateT_contra", contravariant=True)


class InvariantViolated(Exception):
    """The next state would break an invariant. Nothing of the batch is written."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time has advanced. Comes at least every tick interval, and once after a takeover.

    `read_until`: until when the signals of each partition were observed; of others all were.
    """

    read_until: Mapping[TopicPartition, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """A record of an input stream that is not a valid event, offered to `decide` before the DLQ.

    `subject` is its ce_subject, "" when it has none.
    """

    error: UndecodableError
    subject: str
    event_type: str
    time: datetime


@dataclass(frozen=True, slots=True)
class EffectDone:
    """The outcome of an effect that the state asked for. `result` is the executor's value."""

    key: str
    result: object


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The inputs that were read together are decided; for deciders that follow them.

    Decisions about all of them belong here and not to the last one: that may be a duplicate, and
    the ids of an input's decisions are derived from it.
    """


Input = Received | Tick | Refused | EffectDone | BatchEnd


@dataclass(frozen=True, slots=True)
class Decision:
    """An event to write to the own log, and the job, node or team that it is about."""

    subject: str
    event: Event


Observed = Received | Tick | Decision | BatchEnd


class Decider(Protocol[StateT, SoftT]):
    """One service's decisions. `evolve` and `observe` may change in place what they return.

    Every record of an `inputs` topic is decided once: its offset is in the transaction of the
    resulting events. `signals` topics (heartbeats) are read from their end and lead to soft state
    only: it is lost on a takeover, and in no log, snapshot or fingerprint.
    """

    name: str
    log: Topic
    inputs: tuple[Topic, ...]
    signals: tuple[Topic, ...]
    follows: bool
    """Whether `observe` gets each input too, after its decisions, and a `BatchEnd` comes."""

    def initial(self) -> StateT:
        """The state before the first event."""

    def initial_soft(self) -> SoftT:
        """The soft state of a process that has observed nothing."""

    def decide(self, state: StateT, soft: SoftT, item: Input, now: datetime) -> Sequence[Decision]:
        """The events that follow from one input; [] for duplicates. Changes neither state.

        For a `Refused` input: [] leaves it to the DLQ.
        """

    def evolve(self, state: StateT, decision: Decision, at: datetime) -> StateT:
        """The state after an event of the own log that was decided `at` this time."""

    def observe(self, state: StateT, soft: SoftT, observed: Observed, now: datetime) -> SoftT:
        """The soft state after a signal, a Tick, or an own decision that `state` has already.

        A signal's decisions are made at the next Tick, which is observed before it is decided.
        """

    def effects(self, state: StateT, soft: SoftT) -> Mapping[str, object]:
        """Work in the outside world that the state requests, by key; {} for most services.

        The loop gives each new key to its executor once per process and feeds the result back as
        `EffectDone`. A key stays until an event removes it. After a crash the work may be done
        twice, so it must be idempotent.
        """

    def check(self, state: StateT) -> list[str]:
        """Invariants that do not hold, as sentences; [] when all is well. Called each cycle."""


class UnfoldedEvent(Exception):
    """An event of the own log for which the fold has no function."""


class Fold(Generic[StateT]):
    """How each type of one decision log changes the state: one function a type.

    A function changes the state in place by the event and the time when it was decided. An event
    of another type raises UnfoldedEvent, which ends the process: it must not be skipped.
    """

    def __init__(self, log: Topic) -> None:
        self._log = log
        self._functions: dict[str, Callable[[StateT, Event, datetime], None]] = {}

    def on(
        self, kind: type[EventT]
    ) -> Callable[[Callable[[StateT, EventT, datetime], None]], None]:
        """Register the decorated function for this type. Raises ValueError for a second one."""

        def register(function: Callable[[StateT, EventT, datetime], None]) -> None:
            if kind.type in self._functions:
                raise ValueError(f"{kind.type} is folded by two functions")
            self._functions[kind.type] = function  # type: ignore[assignment]

        return register

    def missing(self) -> frozenset[str]:
        """The types of the log without a function; empty for a complete fold."""
        return frozenset(catalog()[self._log].types) - self._functions.keys()

    def __call__(self, state: StateT, event: Event, at: datetime) -> StateT:
        """Change the state by one event, and return it."""
        function = self._functions.get(event.type)
        if function is None:
            raise UnfoldedEvent(f"{event.type} is not an event of {self._log.value}")
        function(state, event, at)
        return state


class BaseDecider(ABC, Generic[StateT, SoftT]):
    """The base of all deciders: a fold, no signals, no effects, and None as soft state.

    A decider names its `name`, `log`, `inputs` and `fold`, and defines `initial`, `decide` and
    `check`.
    """

    name: str
    log: Topic
    inputs: tuple[Topic, ...]
    signals: tuple[Topic, ...] = ()
    follows: bool = False
    fold: Fold[StateT]

    @abstractmethod
    def initial(self) -> StateT:
        """See Decider."""

    def initial_soft(self) -> SoftT:
        """None: a decider with a soft state defines its own."""
        return None  # type: ignore[return-value]

    @abstractmethod
    def decide(self, state: StateT, soft: SoftT, item: Input, now: datetime) -> Sequence[Decision]:
        """See Decider."""

    def evolve(self, state: StateT, decision: Decision, at: datetime) -> StateT:
        """The state after an event of the own log, by `fold`."""
        return self.fold(state, decision.event, at)

    def observe(self, state: StateT, soft: SoftT, observed: Observed, now: datetime) -> SoftT:  # noqa: ARG002 - see Decider
        """Note nothing."""
        return soft

    def effects(self, state: StateT, soft: SoftT) -> Mapping[str, object]:  # noqa: ARG002 - see Decider
        """Ask for no work."""
        return {}

    @abstractmethod
    def check(self, state: StateT) -> list[str]:
        """See Decider."""


@dataclass(frozen=True, slots=True)
class Recall:
    """The records that a takeover reads again: of `types`, from these offsets (by partition)."""

    topic: Topic
    types: frozenset[str]
    offsets: Mapping[int, int]


@runtime_checkable
class Recalling(Protocol[StateT_contra]):
    """A decider whose soft state is also made of inputs, so that its log need not repeat them.

    The loop gives each input to `observe` too, after its decisions. A takeover gives it the
    records of `recall` again, up to the committed offset of each partition. So the soft state
    is a function of the own log and of that part of the input.
    """

    def recall(self, state: StateT_contra) -> Recall:
        """The inputs that make the soft state, according to the state."""
