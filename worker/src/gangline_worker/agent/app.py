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
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog

from gangline_bus.codec import Received
from gangline_bus.decision import Tick
from gangline_bus.ports import Bus, BusError, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_schemas.features import RELEASE
from gangline_service.lifecycle import Context, Restart
from gangline_storage.open import open_store

from . import bootstrap
from .config import AgentSettings
from .decide.core import AgentCore
from .decide.effects import Effect
from .decide.inputs import HeartbeatAcked, Input, Leave
from .decide.keys import Moment
from .decide.membership import AgentLimits
from .event_reader import BUS_RETRY_S, EventReader, ends_of_logs
from .executor import Executor, Parts
from .handover import FORMAT, Handover, leave
from .health.notices import Notice, NoticeWatch, open_notices
from .host_resources import adopt_host_resources, take_host_resources
from .images import prefetch
from .inbox import Inbox
from .rendezvous.store_host import StoreHost, admit_unasked
from .renewal import Renewal
from .runtime.launcher import Launcher, become_subreaper
from .runtime.lease_guard import LeaseGuard
from .runtime.rank_env_file import read_rank_env
from .spool.outgoing import Outgoing
from .warm.zygote_host import ZygoteHost
from .workspace.prepare import Preparer

log = structlog.get_logger(__name__)

TICK_S = 0.2
_LAST_UPLOADS_S = 6.0  # of the time until it must be gone: for what ranks left, and to say so
_READER_S = 5.0
_LAST_WORDS_S = 2.0
_MIB = 1024 * 1024


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
        data = self._folders.data
        self._peers = bootstrap.peer_tier(settings, data)
        self._prefetch: prefetch.Prefetch | None = None
        self._pods = bootstrap.pod_hosts(settings, self._folders.sockets)
        self._containers = bootstrap.containers(settings, self._folders)
        self._no_images = bootstrap.no_images(self._containers, self._isolator)
        self._node = (
            handover.core.standing.node.model_copy(update={"release": RELEASE})
            if handover
            else bootstrap.inventory(
                settings, self._host.ports, self._isolator, self._peers, self._no_images
            )
        )
        self._watch = bootstrap.health_watch(settings, data, self._node)
        self._usage = bootstrap.usage_watch(settings, data, self._node)
        self._checks = bootstrap.node_checks(
            settings, self._folders, self._watch, self._inbox.put, self._node
        )
        limits = AgentLimits(
            settings.heartbeat_interval_s,
            settings.lease,
            check_node=self._checks is not None,
            check_again_s=settings.check_again_s,
        )
        self._core = AgentCore(self._node, limits)
        sockets, lock = str(self._folders.sockets), self._host.lock
        self._guard = LeaseGuard(sockets, lock, settings.guard_slack_s)
        self._warm = bootstrap.warm_start(settings, self._folders.sockets, self._node)
        zygote = self._warm if isinstance(self._warm, ZygoteHost) else None
        confirms = self._peers.confirms if self._peers is not None else admit_unasked
        self._stores = StoreHost(self._inbox.put, zygote, confirms)

    def run(self) -> Restart | None:
        """Live until `stopping` is set and the ranks are gone, or another program continues."""
        become_subreaper()
        self._begin_helpers()
        self._watch.start()
        positions = self._read_from()
        if positions is None:
            self._end_helpers()
            return None
        outgoing = self._outgoing()
        executor = Executor(self._parts(outgoing))
        if self._handover is not None:
            outgoing.adopt(self._handover.unsaved)
            executor.adopt(self._handover.effects, self._handover.core.gangs)
            executor.launcher.not_orphans.update(self._handover.host_resources.isolation.pids)
        outgoing.start()
        node_id, ended = self._node.node_id, self._ended
        if self._usage is not None:
            self._usage.start(executor.places, outgoing.publish_points)
        reader = EventReader(self._connect, node_id, positions, self._take, ended)
        reader.start()
        if self._notices is not None:
            self._notices.start()
        log.info(
            "agent.joins" if self._handover is None else "agent.restarted",
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
        if self._usage is not None:
            self._usage.stop()
        if self._checks is not None:
            self._checks.stop()
        if self._prefetch is not None:
            self._prefetch.stop()
        if self._peers is not None:
            self._peers.stop()
        if self._warm is not None:
            self._warm.stop()

    def _read_from(self) -> Mapping[TopicPartition, int] | None:
        """Where to read the logs from; None when the agent was stopped before."""
        if self._handover is not None:
            return dict(self._handover.positions)
        if self._stays():
            self._check_node()
            return self._wait_for_logs()
        return None

    def _hand_over(self, executor: Executor, outgoing: Outgoing, reader: EventReader) -> Restart:
        """Stop in order, so that no received message is lost; ranks and their state stay."""
        executor.pause()
        self._ended.set()
        reader.join(_READER_S)
        positions = reader.positions  # of what is in the inbox now, should it read on all the same
        while items := self._inbox.take(0.0):
            for item in items:
                self._handle(executor, item)
        kept = executor.kept(self._core.gangs)
        outgoing.close(_LAST_WORDS_S)
        self._end_own()
        log.info("agent.restarting", ranks=len(kept.ranks))
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

    def _check_node(self) -> None:
        if self._checks is not None:
            self._checks.begin()

    def _outgoing(self) -> Outgoing:
        return Outgoing(
            self._folders.data / "spool",
            self._node.node_id,
            self._names,
            self._connect,
            limit_bytes=self._settings.spool_limit_mb * _MIB,
            gpus=lambda: self._watch.statuses,
            health=lambda: self._watch.newest,
            use=lambda: self._usage.newest if self._usage is not None else None,
            meter=self._meter,
        )

    def _parts(self, outgoing: Outgoing) -> Parts:
        store = open_store(self._settings.store_url)
        checkpoints = bootstrap.checkpoints(self._settings, self._folders.data, store)
        images = bootstrap.images(self._settings, self._folders, store, self._no_images)
        if self._no_images is None and self._pods is None:
            self._prefetch = prefetch.Prefetch(self._node.node_id, images)
            self._prefetch.start()
        peers = None
        if self._peers is not None:
            for gang in self._handover.core.gangs if self._handover is not None else ():
                self._peers.note(gang.allocation)
            peers = self._peers.start(store, self._isolator.owner, images.packed)
        mlflow = bootstrap.mlflow_access(self._settings, store)
        preparer = Preparer(
            self._folders,
            store,
            checkpoints,
            self._isolator.owner,
            peers,
            mlflow,
            images,
            self._pods,
            devices=bootstrap.gang_devices(self._settings, self._node),
        )
        return Parts(
            self._inbox,
            outgoing,
            preparer,
            checkpoints,
            self._stores,
            self._warm,
            None if self._warm is None or self._containers else self._folders.sockets,
            self._check_node,
            self._isolator,
            self._node,
            self._rank_env,
            self._pods,
            self._containers,
        )

    def _turn(self, executor: Executor) -> bool:
        """Whether to hand over; else nothing is left to be done."""
        at = now()
        begun = self._core.adopt(self._handover.core) if self._handover else self._core.start(at)
        self._act(executor, begun, at)
        renewal = Renewal(self._restarting, self._core, executor.launcher)
        tick_due_s = at.mono_s
        grace_s = _grace_s(self._settings.stop_grace_s)
        leaving = False
        standing = self._core.member.standing
        while not self._core.gone:
            for item in self._inbox.take(TICK_S):
                self._handle(executor, item)
                if isinstance(item, HeartbeatAcked):
                    self._guard.extend(self._core.member.lease_ends_s)
                    slack_s = self._settings.guard_slack_s
                    executor.extend(self._core.member.lease_ends_s + slack_s)
            if self._stopping.is_set() and not leaving:
                leaving = True
                self._handle(executor, Leave("the agent was asked to stop", grace_s))
            elif standing.leaving is None and renewal.is_due(idle=executor.idle):
                return True
            if time.monotonic() >= tick_due_s:
                tick_due_s = time.monotonic() + TICK_S
                self._handle(executor, Tick())
                self._tick_helpers(executor.launcher)
                executor.tick()
                self._update_health()
        return False

    def _tick_helpers(self, launcher: Launcher) -> None:
        helpers = [part.pid for part in (self._stores, self._guard, self._checks) if part]
        helpers += self._warm.pids if self._warm is not None else ()
        launcher.not_orphans.update(filter(None, helpers))
        launcher.reap()
        self._stores.tick()
        if self._warm is not None:
            self._warm.tick()

    def _update_health(self) -> None:
        self._health.beat()
        member = self._core.member
        lease = member.standing.joined and time.monotonic() < member.lease_ends_s
        unfit_for = "; ".join(member.standing.unfit_for)
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

    def _stays(self) -> bool:
        """Wait while the machine is about to go; False when the agent was stopped before."""
        logged = None
        while self._notices is not None and not self._stopping.is_set():
            notice = self._notices.read()
            self._health.beat()
            self._health.set("notice", ok=notice is None, detail=notice.reason if notice else "")
            if notice is None:
                break
            if notice.reason != logged:
                logged = notice.reason
                log.warning("agent.join_delayed", reason=logged)
            self._stopping.wait(self._settings.notice_interval_s)
        return not self._stopping.is_set()

    def _noticed(self, notice: Notice) -> None:
        self._inbox.put(Leave(notice.reason, _grace_s(notice.left_s)))

    def _wait_for_logs(self) -> Mapping[TopicPartition, int] | None:
        """The ends of the logs; None when the agent was stopped before."""
        bus = self._connect("agent")
        while not self._stopping.is_set():
            self._health.beat()
            try:
                return ends_of_logs(bus, self._names)
            except BusError as error:
                self._health.set("bus", ok=False, detail=str(error))
                log.warning("agent.waits_for_bus", error=str(error), retry_in_s=BUS_RETRY_S)
                self._stopping.wait(BUS_RETRY_S)
        return None

    def _take(self, received: Received) -> None:
        if self._peers is not None:
            self._peers.note(received.envelope.data)
        if self._prefetch is not None:
            self._prefetch.note(received.envelope.data)
        if not isinstance(received.envelope.data, prefetch.READS):
            self._inbox.put(received)


def _grace_s(left_s: float) -> float:
    """Of the time until the agent must be gone: so much for its ranks to save and exit."""
    return max(1.0, left_s - _LAST_UPLOADS_S)
