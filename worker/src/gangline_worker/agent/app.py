"""The agent's process: folders, threads, and the loop of the one thread that owns the core.

1. Take the data folder, kill what an earlier agent left behind (host_resources.py).
2. Wait while the provider says that the machine will go; then begin to check it.
3. Wait for the bus, note the ends of the scheduler's and the fault manager's logs, then join.
4. For each input, in order: decide, act. Ticks come at least every `TICK_S` seconds.
5. At a stop or a notice of the cloud: leave, let ranks save and exit, send the rest, end.
   At a reload: hand over to the next program in this process (handover.py), which takes up the
   state instead of 1 to 3.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from secrets import token_hex

import structlog

from gangline_bus.codec import Received, UndecodableError, receive
from gangline_bus.decision import Tick
from gangline_bus.ports import Bus, BusError, Record, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic
from gangline_schemas.events.faults import CheckpointRequested, GangFailed, NodeFailed, NodeLeft
from gangline_schemas.events.scheduling import (
    CheckpointIntervalChanged,
    GangAllocated,
    GangReleased,
    GangStopping,
    ResumePointChanged,
)
from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.features import RELEASE
from gangline_service.lifecycle import Context, Restart
from gangline_storage.open import open_store
from gangline_storage.pace import Pace
from gangline_storage.retry import Retry
from gangline_storage.s3_options import S3Options

from .checkpoints.transfer import Checkpoints
from .config import AgentSettings
from .decide.core import AgentCore
from .decide.effects import Effect
from .decide.inputs import HeartbeatAcked, Input, Leave
from .decide.keys import Moment
from .decide.membership import AgentLimits
from .executor import Executor, Parts
from .handover import FORMAT, Handover, leave
from .health.fitness import FitnessLimits
from .health.gpus import GpuWatch
from .health.node_check_host import NodeCheckHost
from .health.notices import Notice, NoticeWatch, open_notices
from .health.source import HealthSource, HealthWatch, HostHealth, ScriptedHealth
from .host.inventory import Labels, take_inventory
from .host_resources import adopt_host_resources, take_host_resources
from .inbox import Inbox
from .peers.tier import PeerSettings, PeerTier, open_peer_tier
from .rendezvous.store_host import StoreHost, admit_unasked
from .renewal import Renewal
from .runtime.launcher import Launcher, become_subreaper
from .runtime.lease_guard import LeaseGuard
from .runtime.rank_env_file import read_rank_env
from .spool.outgoing import Outgoing
from .warm.process import WarmStart
from .warm.standby_host import StandbyPool
from .warm.zygote_host import ZygoteHost
from .workspace.prepare import Preparer

log = structlog.get_logger(__name__)

TICK_S = 0.2
_BUS_RETRY_S = 0.5
_LAST_UPLOADS_S = 6.0  # of the time until it must be gone: for what ranks left, and to say so
_UPLOADS_WAIT_S = 60.0  # for a store that is away, the parts that it has are not sent again
_READER_S = 5.0
_LAST_WORDS_S = 2.0
_MIB = 1024 * 1024
_CONCERNS = (
    GangAllocated,
    GangStopping,
    GangReleased,
    ResumePointChanged,
    CheckpointIntervalChanged,
    GangFailed,
    CheckpointRequested,
    NodeFailed,
    NodeLeft,
)


def now() -> Moment:
    """The present."""
    return Moment(time.monotonic(), datetime.now(UTC))


class Agent:
    """One node agent. `connect(purpose)` gives a connection to the bus for one thread."""

    def __init__(
        self,
        context: Context[AgentSettings],
        connect: Callable[[str], Bus],
        handover: Handover | None,
    ) -> None:
        settings = self._settings = context.settings
        self._connect = connect
        self._health = context.health
        self._stopping = context.stopping
        self._restarting = context.restarting
        self._meter = context.meter
        self._handover = handover
        self._names = TopicNames(settings.topic_prefix)
        self._rank_env = read_rank_env(settings.rank_env_file)
        self._inbox = Inbox()
        self._ended = threading.Event()
        notices = open_notices(settings.notice_provider, settings.notice_url)
        self._notices = (
            NoticeWatch(notices, settings.notice_interval_s, self._noticed, self._ended)
            if notices is not None
            else None
        )
        self._host = (
            adopt_host_resources(settings, handover.host_resources)
            if handover
            else take_host_resources(settings)
        )
        self._folders, self._isolator = self._host.folders, self._host.isolator
        self._peers = self._peer_tier()
        self._node = (
            handover.core.standing.node.model_copy(update={"release": RELEASE})
            if handover
            else self._inventory()
        )
        self._watch = HealthWatch(self._health_source, settings.health_interval_s, self._gpus)
        self._checks = self._node_checks()
        limits = AgentLimits(
            settings.heartbeat_interval_s,
            settings.lease,
            check_node=self._checks is not None,
            check_again_s=settings.check_again_s,
        )
        self._core = AgentCore(self._node, limits)
        sockets, lock = str(self._folders.sockets), self._host.lock
        self._guard = LeaseGuard(sockets, lock, settings.guard_slack_s)
        self._warm = self._warm_start()
        zygote = self._warm if isinstance(self._warm, ZygoteHost) else None
        confirms = self._peers.confirms if self._peers is not None else admit_unasked
        self._stores = StoreHost(self._inbox.put, zygote, confirms)
        self._positions: dict[TopicPartition, int] = {}

    def run(self) -> Restart | None:
        """Live until `stopping` is set and the ranks are gone, or another program continues."""
        become_subreaper()
        self._begin_helpers()
        self._watch.start()
        if not self._read_from():
            self._end_helpers()
            return None
        outgoing = self._outgoing()
        executor = Executor(self._parts(outgoing))
        if self._handover is not None:
            outgoing.adopt(self._handover.unsaved)
            executor.adopt(self._handover.effects, self._handover.core.gangs)
            executor.launcher.not_orphans.update(self._handover.host_resources.isolation.pids)
        outgoing.start()
        reader = threading.Thread(target=self._read, name="bus-reader", daemon=True)
        reader.start()
        if self._notices is not None:
            self._notices.start()
        log.info(
            "agent.joins" if self._handover is None else "agent.goes_on",
            node=self._node.node_id,
            gpus=len(self._node.gpus),
        )
        restart = None
        try:
            if self._turn(executor):
                restart = self._hand_over(executor, outgoing, reader)
        finally:
            if restart is None:
                self._ended.set()
                executor.stop()
                outgoing.close(3.0)
                self._end_helpers()
                reader.join(2.0)
        return restart

    def _begin_helpers(self) -> None:
        if self._warm is not None:
            self._warm.start()
        if self._handover is None:
            self._guard.start()
            self._stores.start()
        else:
            self._guard.adopt(self._handover.guard)
            self._stores.adopt(self._handover.stores)

    def _end_helpers(self) -> None:
        self._end_own()
        self._stores.stop()
        self._guard.stop()

    def _end_own(self) -> None:
        """End the threads that the next program in this process starts for itself."""
        self._watch.stop()
        if self._checks is not None:
            self._checks.stop()
        if self._peers is not None:
            self._peers.stop()
        if self._warm is not None:
            self._warm.stop()

    def _read_from(self) -> bool:
        """Settle where to read the logs from; False when the agent was stopped before."""
        if self._handover is not None:
            self._positions = dict(self._handover.positions)
            return True
        if self._stays():
            self._check_node()
            return self._wait_for_logs()
        return False

    def _hand_over(
        self, executor: Executor, outgoing: Outgoing, reader: threading.Thread
    ) -> Restart:
        """Stop in order, so that nothing that was heard is lost, and leave what there is."""
        executor.pause()
        self._ended.set()
        reader.join(_READER_S)
        positions = self._positions  # of what is in the inbox now, should it read on all the same
        while items := self._inbox.take(0.0):
            for item in items:
                self._handle(executor, item)
        kept = executor.kept(self._core.gangs)
        outgoing.close(_LAST_WORDS_S)
        self._end_own()
        log.info("agent.hands_over", ranks=len(kept.ranks))
        return leave(
            Handover(
                FORMAT,
                self._host.kept(),
                self._guard.kept(),
                self._stores.kept(),
                self._core.state,
                kept,
                tuple(positions.items()),
                outgoing.unsaved(),
            )
        )

    def _peer_tier(self) -> PeerTier | None:
        """None where the node gives no copies, or cannot listen for requests."""
        settings = self._settings
        if not settings.peer_copies:
            return None
        given = PeerSettings(
            settings.node_id, settings.address, settings.peer_port, settings.peer_timeout_s
        )
        return open_peer_tier(given, self._folders.data)

    def _inventory(self) -> NodeInfo:
        settings = self._settings
        node = take_inventory(
            Labels(settings.node_id, token_hex(8), settings.address, settings.rack, settings.block),
            slots=settings.slots,
            ports=self._host.ports,
        )
        known: dict[str, object] = {"isolation": self._isolator.level}
        if self._peers is not None:
            known["copies_port"] = self._peers.port
        return node.model_copy(update=known)

    @property
    def _gpus(self) -> tuple[int, ...]:
        return tuple(gpu.index for gpu in self._node.gpus if gpu.model != "cpu")

    def _node_checks(self) -> NodeCheckHost | None:
        """None where the node joins unchecked."""
        settings, level = self._settings, self._settings.node_check
        if level == "off":
            return None
        if level == "auto":
            level = "full" if self._gpus else "light"
        limits = FitnessLimits(
            settings.disk_free_gb, settings.memory_free_gb, settings.clock_error_s
        )
        return NodeCheckHost(level, self._folders, limits, self._watch, self._inbox.put, self._gpus)

    def _check_node(self) -> None:
        if self._checks is not None:
            self._checks.begin()

    def _warm_start(self) -> WarmStart | None:
        """None where all ranks start cold. By default none is forked where a GPU's driver is."""
        how, sockets = self._settings.warm_start, self._folders.sockets
        if how == "auto":
            how = "standby" if self._gpus else "fork"
        if how == "off":
            return None
        if how == "fork":
            return ZygoteHost(sockets)
        return StandbyPool(sockets, self._settings.standbys or len(self._node.gpus))

    def _outgoing(self) -> Outgoing:
        return Outgoing(
            self._folders.data / "spool",
            self._node.node_id,
            self._names,
            self._connect,
            limit_bytes=self._settings.spool_limit_mb * _MIB,
            gpus=lambda: self._watch.statuses,
            health=lambda: self._watch.newest,
            meter=self._meter,
        )

    def _parts(self, outgoing: Outgoing) -> Parts:
        url = self._settings.store_url
        store = open_store(url)
        limit = self._settings.upload_mb_per_s
        checkpoints = Checkpoints(
            self._folders.data / "checkpoints",
            store,
            node_id=self._node.node_id,
            link=self._settings.link_uploads,
            pace=Pace(limit * 1e6) if limit is not None else None,
            uploads=open_store(url, options=S3Options(retry=Retry.within(_UPLOADS_WAIT_S))),
        )
        peers = None
        if self._peers is not None:
            for gang in self._handover.core.gangs if self._handover is not None else ():
                self._peers.note(gang.allocation)
            peers = self._peers.start(store, self._isolator.owner)
        preparer = Preparer(self._folders, store, checkpoints, self._isolator.owner, peers)
        return Parts(
            self._inbox,
            outgoing,
            preparer,
            checkpoints,
            self._stores,
            self._warm,
            self._check_node,
            self._isolator,
            self._node,
            self._rank_env,
        )

    def _turn(self, executor: Executor) -> bool:
        """Whether to hand over; else nothing is left to be done."""
        at = now()
        begun = self._core.go_on(self._handover.core) if self._handover else self._core.start(at)
        self._act(executor, begun, at)
        renewal = Renewal(self._restarting, self._core, executor.launcher)
        tick_due_s = at.mono_s
        grace_s = _grace_s(self._settings.stop_grace_s)
        leaving = False
        while not self._core.gone:
            for item in self._inbox.take(TICK_S):
                self._handle(executor, item)
                if isinstance(item, HeartbeatAcked):
                    self._guard.extend(self._core.lease_ends_s)
            if self._stopping.is_set() and not leaving:
                leaving = True
                self._handle(executor, Leave("the agent was asked to stop", grace_s))
            elif self._may_restart and renewal.is_due(idle=executor.idle):
                return True
            if time.monotonic() >= tick_due_s:
                tick_due_s = time.monotonic() + TICK_S
                self._handle(executor, Tick())
                self._tick_helpers(executor.launcher)
                self._tell_health()
        return False

    @property
    def _may_restart(self) -> bool:
        return self._restarting.is_set() and self._core.state.standing.leaving is None

    def _tick_helpers(self, launcher: Launcher) -> None:
        helpers = [part.pid for part in (self._stores, self._guard, self._checks) if part]
        helpers += self._warm.pids if self._warm is not None else ()
        launcher.not_orphans.update(filter(None, helpers))
        launcher.reap()
        self._stores.tick()
        if self._warm is not None:
            self._warm.tick()

    def _tell_health(self) -> None:
        self._health.beat()
        lease = self._core.joined and time.monotonic() < self._core.lease_ends_s
        unfit_for = "; ".join(self._core.unfit_for)
        self._health.set("check", ok=not unfit_for, detail=unfit_for)
        self._health.set("bus", ok=lease, detail="" if lease else "no heartbeat is taken")

    def _handle(self, executor: Executor, item: Input) -> None:
        at = now()
        self._act(executor, self._core.handle(item, at), at)

    def _act(self, executor: Executor, effects: list[Effect], at: Moment) -> None:
        """Do all of an input's effects, then those that follow from what they led to."""
        waiting = deque(effects)
        while waiting:
            for followed in executor.execute(waiting.popleft(), at):
                waiting.extend(self._core.handle(followed, at))

    def _health_source(self) -> HealthSource:
        script = self._settings.health_script
        if script is None:
            return HostHealth(self._folders.data, GpuWatch())
        name = f"{self._settings.node_id}.json"
        return ScriptedHealth(script / name if script.is_dir() else script)

    def _stays(self) -> bool:
        """Wait while the machine is about to go; False when the agent was stopped before."""
        told = None
        while self._notices is not None and not self._stopping.is_set():
            notice = self._notices.read()
            self._health.beat()
            self._health.set("notice", ok=notice is None, detail=notice.reason if notice else "")
            if notice is None:
                break
            if notice.reason != told:
                told = notice.reason
                log.warning("agent.does_not_join", reason=told)
            self._stopping.wait(self._settings.notice_interval_s)
        return not self._stopping.is_set()

    def _noticed(self, notice: Notice) -> None:
        self._inbox.put(Leave(notice.reason, _grace_s(notice.left_s)))

    def _wait_for_logs(self) -> bool:
        """Begin at the ends of the logs; False when the agent was stopped before."""
        bus = self._connect("agent")
        while not self._stopping.is_set():
            self._health.beat()
            try:
                places = [
                    place
                    for topic in (Topic.SCHEDULING, Topic.FAULTS)
                    for place in self._names.places(bus, topic)
                ]
                self._positions = dict(bus.end_offsets(places))
                return True
            except BusError as error:
                self._health.set("bus", ok=False, detail=str(error))
                log.warning("agent.waits_for_bus", error=str(error), retry_in_s=_BUS_RETRY_S)
                self._stopping.wait(_BUS_RETRY_S)
        return False

    def _read(self) -> None:
        """Pass on what concerns gangs, from `_positions` on, until the agent ends."""
        bus = self._connect("reader")
        while not self._ended.is_set():
            reader = bus.reader(f"agent-{self._node.node_id}")
            reader.assign(self._positions)
            try:
                while not self._ended.is_set():
                    records = reader.poll(1000, 0.25)
                    for received in _concerning_gangs(records):
                        if self._peers is not None:
                            self._peers.note(received.envelope.data)
                        self._inbox.put(received)
                    self._positions = {**self._positions, **reader.positions()}
                    if not records:
                        self._ended.wait(0.02)
            except BusError as error:
                log.warning("agent.reader_failed", error=str(error))
                self._ended.wait(_BUS_RETRY_S)
            finally:
                reader.close()


def _grace_s(left_s: float) -> float:
    """Of the time until the agent must be gone: so much for its ranks to save and exit."""
    return max(1.0, left_s - _LAST_UPLOADS_S)


def _concerning_gangs(records: Sequence[Record]) -> list[Received]:
    """The records that the agent acts on. A failure comes before the release that follows from it.

    They stand in two logs, so the release may be read first.
    """
    found = []
    for record in records:
        try:
            received = receive(record)
        except UndecodableError as error:
            log.warning("agent.skips_record", offset=record.offset, error=str(error))
            continue
        if isinstance(received.envelope.data, _CONCERNS):
            found.append(received)
    return sorted(found, key=lambda item: not isinstance(item.envelope.data, GangFailed))
