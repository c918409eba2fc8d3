"""Reading the scheduler's log from Kafka, with the checks of its fold."""

from __future__ import annotations

from datetime import datetime

from gangline.errors import CliError, ExitCode
from gangline_bus.decision import Decision
from gangline_bus.fold import Folded, LogBroken, fold_log
from gangline_bus.ports import Bus, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.state import State
from gangline_schemas.catalog import Topic
from gangline_schemas.events.scheduling import GangMemberChanged, JobWaiting
from gangline_simulator.history import Logged


def read_log(
    bus: Bus, names: TopicNames, until: datetime | None = None, shard: int = 0
) -> list[Logged]:
    """The events of the scheduler's log up to a time. Raises CliError, BusError."""
    reader = _Reader()
    fold_until(bus, names, reader, until, shard)
    if not reader.read:
        raise nothing_decided(until)
    return reader.read


class _Reader(Scheduler):
    """Keeps the events of the log instead of folding them."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[Logged] = []

    def evolve(self, state: State, decision: Decision, at: datetime) -> State:
        """One event more; what no history is read from is left out, as there is much of it."""
        if not isinstance(decision.event, GangMemberChanged | JobWaiting):
            self.read.append(Logged(at, decision.event))
        return state


def fold_until(
    bus: Bus, names: TopicNames, decider: Scheduler, until: datetime | None, shard: int
) -> Folded[State]:
    """The decider's fold of the log up to a time. Raises CliError, BusError."""
    place = TopicPartition(names.name(Topic.SCHEDULING), shard)
    try:
        shards = bus.partitions(place.topic)
        if shard >= shards:
            raise CliError(
                f"--shard: there is no shard {shard}", f"give 0 to {shards - 1}", ExitCode.USAGE
            )
        if bus.start_offsets([place])[place] > 0:
            raise CliError(
                f"the log lacks its beginning: {place.topic} starts at offset "
                f"{bus.start_offsets([place])[place]}",
                "it must be kept for ever: retention.ms=-1, cleanup.policy=delete",
            )
        return fold_log(bus, decider, place, until=until)
    except LogBroken as error:
        hint = "its beginning is gone" if str(error).endswith("expected 0") else ""
        raise CliError(f"the log is broken: {error}", hint) from None


def nothing_decided(by: datetime | None) -> CliError:
    """The log says nothing up to that time."""
    if by is None:
        return CliError("the log is empty", "submit a job first", ExitCode.NOT_FOUND)
    return CliError(
        f"the scheduler had decided nothing by {by:%Y-%m-%d %H:%M:%S} UTC",
        "give a later time",
        ExitCode.NOT_FOUND,
    )
