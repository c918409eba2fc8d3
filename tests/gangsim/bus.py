"""The simulated broker: the bus in memory, with what goes wrong around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gangline_bus.memory import Broker
from gangline_bus.memory_broker import Entry, Faults, Status
from gangline_bus.ports import OutRecord, TopicPartition
from gangsim.engine import Engine


class SimCrash(BaseException):
    """The process is gone at this point."""


class SimPause(BaseException):
    """The process stands still at this point, with its transaction not yet begun."""


class SimFaults(Faults):
    """Faults that are armed for a service and strike it once, when it reaches their point."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.armed: dict[tuple[str, str], type[BaseException]] = {}
        self.leaks: dict[str, float] = {}
        self.on_leak: Callable[[str, float], None] = lambda service, delay_s: None
        self.mid_commit: dict[str, Callable[[], None]] = {}
        self.copied: dict[str, int] = {}

    def at(self, point: str, client: str) -> None:
        """Crash or pause the client if that is armed for its service."""
        if not self.armed and not self.mid_commit:
            return
        service = client.partition("/")[0]
        if point == "commit.produced" and service in self.mid_commit:
            self.mid_commit.pop(service)()
        strike = self.armed.pop((service, point), None)
        if strike is not None:
            self._engine.note("strike", strike.__name__, client, point)
            raise strike(point)

    def copies(self, record: OutRecord, client: str) -> int:
        """Two while the client's records are being doubled."""
        return self.copied.get(client.partition("/")[0], 1)

    def keeps_end(self, client: str, commit: bool) -> bool:
        """Whether this EndTxn gets lost on its way, to arrive later."""
        service = client.partition("/")[0]
        delay_s = self.leaks.pop(service, None)
        if delay_s is None:
            return False
        self._engine.note("leak", client)
        self.on_leak(service, delay_s)
        return True


class SimBroker(Broker):
    """A broker that wakes the readers of a topic when something can be read there."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(lambda: 1_767_225_600_000 + int(engine.now_s * 1000))
        self.strikes = SimFaults(engine)
        self.faults = self.strikes
        self.wakes: dict[str, list[Callable[[], None]]] = {}
        self.touched: dict[str, None] = {}
        self._unread: dict[TopicPartition, int] = {}

    def hold(self, topic: str) -> None:
        """Take records of a topic as ever, but let no consumer read what comes from now on."""
        for place in self.logs:
            if place.topic == topic:
                self._unread[place] = self.stable_end(place)

    def let_read(self, topic: str) -> None:
        """What was held back can be read, in its order and with its time stamps."""
        for place in self.logs:
            if place.topic == topic:
                self._unread.pop(place, None)
        self._touch(topic)

    def readable(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Whether there is something to read from any of these positions on."""
        logs = self.logs
        for place, at in positions.items():  # no any(): this is asked after every cycle
            if len(logs[place]) > at and self.stable_end(place) > at:
                return True
        return False

    def append(self, record: OutRecord, status: Status) -> tuple[Entry, TopicPartition]:
        appended = super().append(record, status)
        if status is not Status.PENDING:
            self._touch(record.topic)
        return appended

    def stable_end(self, place: TopicPartition) -> int:
        if self._unread and place in self._unread:
            return self._unread[place]
        for writer in self.writers.values():
            if writer.open is not None:
                return super().stable_end(place)
        return len(self.logs[place])

    def _touch(self, topic: str) -> None:
        self.touched[topic] = None
        for wake in self.wakes.get(topic, ()):
            wake()
