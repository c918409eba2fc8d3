"""The agent's process: folders, threads, and the loop of the one thread that owns the core.

1. Take the data folder, kill what an earlier agent left behind.
2. Wait while the provider says that the machine will go; then begin to check it.
3. Wait for the bus, note the ends of the scheduler's and the fault manager's logs, then join.
4. For each input, in order: decide, act. Ticks come at least every `TICK_S` seconds.
5. Told to stop, or given notice: leave, let ranks save and exit, send what is left, end.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

import structlog

from gangline_bus.codec import Received, UndecodableError, receive
from gangline_bus.ports import Bus, BusError, Record, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic
from gangline_schemas.events.faults import CheckpointRequested, GangFailed, NodeFailed
from gangline_schemas.events.scheduling import (
    CheckpointIntervalChanged,
    GangAllocated,
    GangPreempting,
    GangReleased,
    ResumePointChanged,
)
from gangline_schemas.isolation import Isolation
from gangline_service.health import Health
from gangline_storage.open import open_store

from .checkpoints import Checkpoints
from .config import AgentSettings
from .core import AgentCore
from .effects import Effects, Parts
from .fitness import FitnessLimits
from .gpu_health import GpuWatch
from .health_source import HealthSource, HealthWatch, HostHealth, ScriptedHealth
from .inbox import Inbox
from .inventory import Labels, take_inventory
from .isolation import Bounds, Isolator
from .launcher import become_subreaper
from .lease_guard import LeaseGuard
from .membership import AgentLimits
from .model import Action, HeartbeatAcked, Input, Leave, Moment, Tick
from .node_check_host import NodeCheckHost
from .notices import Notice, NoticeWatch, open_notices
from .outgoing import Outgoing
from .peer_tier import open_peer_tier
from .prepare import Folders, Preparer
from .rendezvous_ports import PortBlock
from .standby_host import StandbyPool
from .store_host import StoreHost
from .sweep import kill_agent
from .warm_process import WarmStart
from .zygote_host import ZygoteHost

log = structlog.get_logger(__name__)

TICK_S = 0.2
_BUS_RETRY_S = 0.5
_LAST_UPLOADS_S = 6.0  # of the time until it must be gone: for what ranks left, and to say so
_SOCKET_FOLDER_LIMIT = 36
_MIB = 1024 * 1024
_CONCERNS = (
    GangAllocated,
    GangPreempting,
    GangReleased,
    ResumePointChanged,
    CheckpointIntervalChanged,
    GangFailed,
    CheckpointRequested,
    NodeFailed,
)


def now() -> Moment:
    """The present."""
    return Moment(time.monotonic(), datetime.now(UTC))


class DataFolderTaken(Exception):
    """Another agent uses the data folder."""


class Agent:
    """One node agent. `connect(purpose)` gives a connection to the bus for one thread."""

    def __init__(
        self,
        settings: AgentSettings,
        connect: Callable[[str], Bus],
        health: Health,
        stopping: threading.Event,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._health = health
        self._stopping = stopping
        self._names = TopicNames(settings.topic_prefix)
        self._inbox = Inbox()
        self._ended = threading.Event()
        notices = open_notices(settings.notice_provider, settings.notice_url)
        self._notices = (
            NoticeWatch(notices, settings.notice_interval_s, self._noticed, self._ended)
            if notices is not None
            else None
        )
        data = settings.data_dir.absolute()
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        (data / "spool").mkdir(exist_ok=True)
        (data / "spool").chmod(0o700)  # users of teams may pass through `data`
        self._lock = _take_folder(data)
        sockets = _socket_folder(data)
        kill_agent(str(sockets))
        self._folders = Folders(data, sockets, settings.secrets_dir or data / "secrets")
        self._isolator = self._isolation(data, sockets)
        self._ports = None if settings.ports else PortBlock(settings.node_id, settings.address)
        self._node = take_inventory(
            Labels(settings.node_id, token_hex(8), settings.address, settings.rack, settings.block),
            slots=settings.slots,
            ports=self._ports.ports if self._ports is not None else settings.ports,
        ).model_copy(update={"isolation": self._isolator.level})
        self._peers = open_peer_tier(settings, data) if settings.peer_copies else None
        if self._peers is not None:
            self._node = self._node.model_copy(update={"copies_port": self._peers.port})
        self._watch = HealthWatch(self._health_source, settings.health_interval_s)
        self._checks = self._node_checks()
        limits = AgentLimits(
            settings.heartbeat_interval_s,
            settings.lease,
            check_node=self._checks is not None,
            check_again_s=settings.check_again_s,
        )
        self._core = AgentCore(self._node, limits)

    def run(self) -> None:
        """Live until `stopping` is set and the ranks are gone."""
        become_subreaper()
        guard = LeaseGuard(str(self._folders.sockets), self._lock)
        guard.start()
        warm = self._warm_start()
        if warm is not None:
            warm.start()
        stores = StoreHost(self._inbox.put, warm if isinstance(warm, ZygoteHost) else None)
        stores.start()
        self._watch.start()
        positions = None
        if self._stays():
            self._check_node()
            positions = self._wait_for_logs()
        if positions is None:
            self._end(stores, warm, guard)
            return
        outgoing = self._outgoing()
        effects = Effects(self._parts(outgoing, stores, warm))
        outgoing.start()
        reader = threading.Thread(target=self._read, args=(positions,), name="bus-reader")
        reader.start()
        if self._notices is not None:
            self._notices.start()
        log.info("agent.joins", node=self._node.node_id, gpus=len(self._node.gpus))
        try:
            self._turn(effects, stores, warm, guard)
        finally:
            self._ended.set()
            effects.stop()
            outgoing.close(3.0)
            self._end(stores, warm, guard)
            reader.join(2.0)

    def _end(self, stores: StoreHost, warm: WarmStart | None, guard: LeaseGuard) -> None:
        self._watch.stop()
        if self._checks is not None:
            self._checks.stop()
        if self._peers is not None:
            self._peers.stop()
        stores.stop()
        if warm is not None:
            warm.stop()
        guard.stop()

    def _isolation(self, data: Path, sockets: Path) -> Isolator:
        """Settled on its level. Raises IsolationMissing when the machine lacks the wanted one."""
        settings, wanted = self._settings, self._settings.isolation
        hide = [self._folders.secrets, *([home] if (home := Path.home()) != Path("/") else [])]
        isolator = Isolator(
            data, sockets, hide, Bounds(settings.uids, settings.isolation_processes)
        )
        isolator.settle(wanted if isinstance(wanted, Isolation) else None)
        return isolator

    @property
    def _has_gpus(self) -> bool:
        return any(gpu.model != "cpu" for gpu in self._node.gpus)

    def _node_checks(self) -> NodeCheckHost | None:
        """None where the node joins unchecked."""
        settings, level = self._settings, self._settings.node_check
        if level == "off":
            return None
        if level == "auto":
            level = "full" if self._has_gpus else "light"
        limits = FitnessLimits(
            settings.disk_free_gb, settings.memory_free_gb, settings.clock_error_s
        )
        return NodeCheckHost(level, self._folders, limits, self._watch, self._inbox.put)

    def _check_node(self) -> None:
        if self._checks is not None:
            self._checks.begin()

    def _warm_start(self) -> WarmStart | None:
        """None where all ranks start cold. By default none is forked where a GPU's driver is."""
        how, sockets = self._settings.warm_start, self._folders.sockets
        if how == "auto":
            how = "standby" if self._has_gpus else "fork"
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
            gpus=sum(gpu.model != "cpu" for gpu in self._node.gpus),
            health=lambda: self._watch.newest,
        )

    def _parts(self, outgoing: Outgoing, stores: StoreHost, warm: WarmStart | None) -> Parts:
        store = open_store(self._settings.store_url)
        checkpoints = Checkpoints(
            self._folders.data / "checkpoints",
            store,
            node_id=self._node.node_id,
            link=self._settings.link_uploads,
        )
        peers = self._peers.start(store, self._isolator.owner) if self._peers is not None else None
        preparer = Preparer(self._folders, store, checkpoints, self._isolator.owner, peers)
        return Parts(
            self._inbox,
            outgoing,
            preparer,
            checkpoints,
            stores,
            warm,
            self._check_node,
            self._isolator,
            self._node,
        )

    def _turn(
        self, effects: Effects, stores: StoreHost, warm: WarmStart | None, guard: LeaseGuard
    ) -> None:
        at = now()
        self._act(effects, self._core.start(at), at)
        tick_due_s = at.mono_s
        grace_s = _grace_s(self._settings.stop_grace_s)
        leaving = False
        while not self._core.gone:
            for item in self._inbox.take(TICK_S):
                self._handle(effects, item)
                if isinstance(item, HeartbeatAcked):
                    guard.extend(self._core.lease_ends_s)
            if self._stopping.is_set() and not leaving:
                leaving = True
                self._handle(effects, Leave("the agent was told to stop", grace_s))
            if time.monotonic() >= tick_due_s:
                tick_due_s = time.monotonic() + TICK_S
                self._handle(effects, Tick())
                helpers = [part.pid for part in (stores, guard, self._checks) if part]
                helpers += warm.pids if warm is not None else ()
                effects.launcher.not_orphans.update(filter(None, helpers))
                effects.launcher.reap()
                stores.tick()
                if warm is not None:
                    warm.tick()
                self._health.beat()
                lease = self._core.joined and time.monotonic() < self._core.lease_ends_s
                unfit_for = "; ".join(self._core.unfit_for)
                self._health.set("check", ok=not unfit_for, detail=unfit_for)
                self._health.set("bus", ok=lease, detail="" if lease else "no heartbeat is taken")

    def _handle(self, effects: Effects, item: Input) -> None:
        at = now()
        self._act(effects, self._core.handle(item, at), at)

    def _act(self, effects: Effects, actions: list[Action], at: Moment) -> None:
        """Do all of an input's actions, then those that follow from what they led to."""
        waiting = deque(actions)
        while waiting:
            for followed in effects.perform(waiting.popleft(), at):
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

    def _wait_for_logs(self) -> dict[TopicPartition, int] | None:
        """The ends of the logs that are read; None when the agent was stopped before."""
        bus = self._connect("agent")
        while not self._stopping.is_set():
            self._health.beat()
            try:
                places = [
                    place
                    for topic in (Topic.SCHEDULING, Topic.FAULTS)
                    for place in self._names.places(bus, topic)
                ]
                return bus.end_offsets(places)
            except BusError as error:
                self._health.set("bus", ok=False, detail=str(error))
                log.warning("agent.waits_for_bus", error=str(error), retry_in_s=_BUS_RETRY_S)
                self._stopping.wait(_BUS_RETRY_S)
        return None

    def _read(self, positions: dict[TopicPartition, int]) -> None:
        """Pass on what concerns gangs, from `positions` on, until the agent ends."""
        bus = self._connect("reader")
        while not self._ended.is_set():
            reader = bus.reader(f"agent-{self._node.node_id}")
            reader.assign(positions)
            try:
                while not self._ended.is_set():
                    records = reader.poll(1000, 0.25)
                    for received in _concerning_gangs(records):
                        if self._peers is not None:
                            self._peers.note(received.envelope.data)
                        self._inbox.put(received)
                    positions = {**positions, **reader.positions()}
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
    """What the agent acts on. A failure comes before the release that follows from it.

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


def _take_folder(data: Path) -> int:
    """Lock the data folder for this process's life; an earlier agent may be just ending."""
    descriptor = os.open(data / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(50):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.2)
        else:
            return descriptor
    os.close(descriptor)
    raise DataFolderTaken(
        f"another agent uses {data}; stop it, or set GANGLINE_DATA_DIR to a folder of its own"
    )


def _socket_folder(data: Path) -> Path:
    """A folder of this user alone with a path short enough for sockets; the same each time."""
    folder = data / "sockets"
    if len(os.fsencode(folder)) > _SOCKET_FOLDER_LIMIT:
        name = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
        folder = Path("/tmp") / f"gangline-{os.getuid()}-{name}"  # noqa: S108 -- checked below
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    # 0711: teams' users may pass to the sockets that are theirs (isolation.py).
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) in {0o700, 0o711}
    if not private or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of this user alone; remove it")
    for old in folder.iterdir():
        old.unlink()
    return folder
