"""The process of a deciding service: membership, takeover, the loop, and when to end.

1. Wait for the bus and its topics (bounded and visible), announce the release, then `on_start`.
2. Join the group that shares out the own log's partitions; each owned partition is a shard.
3. For each owned shard: take over and cycle. A process without a shard is a healthy standby.
   A takeover may fold for longer than Kafka waits for a member (`max.poll.interval.ms`). Meanwhile
   the process beats, reports its progress and serves the membership; a shard that is taken away
   ends the fold.
4. A shard that is taken away, any error, or a cycle that hangs ends the process: the supervisor
   starts a new one, which folds the log again. Nothing is repaired in place.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

import structlog
from opentelemetry.metrics import Meter

from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import Decider
from gangline_bus.fold import Interrupted, Progress
from gangline_bus.kafka import KafkaBus
from gangline_bus.loop_settings import LoopSettings
from gangline_bus.ports import Bus, BusDenied, BusError, BusUnavailable, Member
from gangline_bus.snapshot import SnapshotCodec
from gangline_bus.topics import TopicNames
from gangline_storage import StoreError

from .announcing import announce
from .executor import ThreadExecutor
from .lifecycle import Context, end_denied, run
from .settings import DecidingSettings, ServiceSettings, cannot_start
from .snapshots import open_snapshots
from .steady_clock import SteadyClock
from .vitals import publish_vitals
from .watchdog import Watchdog

log = structlog.get_logger(__name__)
StateT = TypeVar("StateT")

LAST_SNAPSHOT_S = 5.0
_ATTEMPTS = 60
_LONGEST_PAUSE_S = 5.0
_FOLD_BEAT_S = 0.5


def connect(settings: ServiceSettings, service: str) -> KafkaBus:
    """The bus of a service process. An `instance_id` that was set makes membership static."""
    return KafkaBus(
        settings.bootstrap_servers,
        client=group_of(TopicNames(settings.topic_prefix), service),
        settings=settings.kafka,
        instance=settings.instance_id if "instance_id" in settings.model_fields_set else None,
        session_timeout_ms=settings.session_timeout_ms,
        password=settings.kafka_password,
        on_denied=end_denied,
    )


def group_of(names: TopicNames, service: str) -> str:
    """The group on Kafka whose members are the processes of a deciding service."""
    return f"{names.prefix}gangline.{service}"


def begin_on_bus(part: str, bus: Bus, names: TopicNames, context: Context[ServiceSettings]) -> None:
    """Wait for the topics, then announce this process's release and vitals. Raises BusError.

    Every process that reads events begins with this: features wait for its release.
    """
    _wait_for_topics(bus, names, context)

    def say_release() -> None:
        announce(bus, names, part, context.settings.instance_id, context.stopping)

    keep_trying(context, say_release, (BusUnavailable,))
    _say_vitals(part, bus, names, context)


def _say_vitals(part: str, bus: Bus, names: TopicNames, context: Context[ServiceSettings]) -> None:
    publish_vitals(
        bus,
        names,
        part,
        context.settings.instance_id,
        context.health,
        context.vitals,
        context.stopping,
    )


def _wait_for_topics(bus: Bus, names: TopicNames, context: Context[ServiceSettings]) -> None:
    """Wait until every topic of the catalog exists.

    Raises BusError after about five minutes.
    """

    def probe() -> None:
        try:
            for topic in names.settings():
                bus.partitions(topic.name)
        except BusDenied:
            raise
        except BusError as error:
            # A missing topic is waited for like a bus that is away: both are being started.
            raise BusUnavailable(str(error)) from error

    context.health.set("bus", ok=False, detail="waiting for the bus")
    keep_trying(context, probe, (BusUnavailable,))
    context.health.set("bus", ok=True)


def keep_trying(
    context: Context[ServiceSettings],
    work: Callable[[], None],
    away: tuple[type[Exception], ...],
    on_failure: Callable[[], None] = lambda: None,
) -> None:
    """Call `work` until it raises none of `away`: a bounded, visible retry with growing pauses.

    Returns as well when the process stops. Raises the last error after about five minutes.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        context.health.beat()
        try:
            work()
        except away as error:
            if attempt == _ATTEMPTS:
                raise
            log.warning("waiting", attempt=attempt, of=_ATTEMPTS, error=str(error))
            on_failure()
            if context.stopping.wait(min(_LONGEST_PAUSE_S, 0.2 * 2**attempt)):
                return
        else:
            return


def _while_folding(shard: int, member: Member, context: Context[ServiceSettings]) -> Progress:
    """Keeps a process alive, and a member of its group, while it folds the shard's log."""

    def progress(done: int, end: int) -> None:
        if context.health.beat_age_s() < _FOLD_BEAT_S:
            return
        context.health.beat()
        detail = f"taking over shard {shard}: {done:,} of {end:,} records of its log are folded"
        context.health.set("role", ok=False, detail=detail)
        if context.stopping.is_set():
            raise Interrupted
        if shard not in member.owned(0.0):
            raise BusError(f"shard {shard} was given to another instance while its log was folded")

    return progress


def settle_collector() -> None:
    """Leave what lives now out of collections, and collect rarely what comes after it.

    A state has no cycles: what falls out of it is freed by its count. By Python's own thresholds a
    full collection holds a cycle up by 0.1 s and more; with 10,000 heartbeats a second there is
    one a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class _Shards(Generic[StateT]):
    """The loops of the shards that this process owns."""

    def __init__(self, make: Callable[[int], DeciderLoop[StateT]], meter: Meter) -> None:
        self._make = make
        self._events = meter.create_counter(
            "gangline.decider.events", description="Records written: decisions, and refused inputs"
        )
        self._leads = meter.create_gauge(
            "gangline.decider.shards", description="Shards of the log that this process leads"
        )
        self._leads.set(0)
        self._loops: dict[int, DeciderLoop[StateT]] = {}
        self._watchdog = Watchdog()

    def serve(self, member: Member, context: Context[ServiceSettings]) -> None:
        """Follow the membership and cycle each loop once."""
        owned = member.owned(0.0 if self._loops else 0.2)
        lost = self._loops.keys() - owned
        if lost:
            raise BusError(f"shards {sorted(lost)} were given to another instance")
        for shard in sorted(owned - self._loops.keys()):
            loop = self._make(shard)
            try:
                loop.take_over(_while_folding(shard, member, context))
            except Interrupted:
                return
            self._loops[shard] = loop
            self._leads.set(len(self._loops))
            settle_collector()
        shards = ", ".join(str(shard) for shard in sorted(self._loops))
        context.health.set("role", ok=True, detail=f"leads shard {shards}" if shards else "standby")
        for shard in sorted(self._loops):
            loop = self._loops[shard]
            with self._watchdog.over(loop):
                self._events.add(loop.cycle(0.05))
            context.vitals.reads(f"shard {shard}", loop.behind)

    def close(self) -> None:
        """Close all loops."""
        for loop in self._loops.values():
            loop.close()

    def settle(self, timeout_s: float) -> None:
        """Wait for what `close` began to write, each for so long."""
        for shard, loop in self._loops.items():
            if not loop.settle(timeout_s):
                log.warning("the last snapshot is not written", shard=shard, waited_s=timeout_s)


def run_decider(
    name: str,
    settings: DecidingSettings,
    decider: Decider[StateT, Any],
    codec: SnapshotCodec[StateT],
    *,
    executor: Callable[[str, object], object] | None = None,
    share: Callable[[object], str] = lambda _: "",
    on_start: Callable[[Bus, Context[ServiceSettings]], None] | None = None,
) -> NoReturn:
    """Run a decider as this process's life. `executor(key, effect)` runs in a few threads.

    These threads are shared fairly among the names that `share(effect)` gives (executor.py).
    """
    try:
        snapshots = open_snapshots(name, settings, codec)
    except StoreError as error:
        cannot_start("GANGLINE_STORE_URL", error)

    def main(context: Context[ServiceSettings]) -> int:
        # Ready only once it leads or stands by: `on_start` may have more to wait for.
        context.health.expect("bus", "role")
        names = TopicNames(settings.topic_prefix)
        bus = connect(settings, name)
        begin_on_bus(name, bus, names, context)
        if on_start is not None:
            on_start(bus, context)
        threads = None if executor is None else ThreadExecutor(executor, share)

        clock = SteadyClock()

        def make(shard: int) -> DeciderLoop[StateT]:
            return DeciderLoop(
                bus,
                decider,
                clock,
                names=names,
                settings=LoopSettings(
                    shard=shard,
                    tick_interval_s=settings.tick_interval_s,
                    instance=settings.instance_id,
                ),
                executor=threads,
                snapshots=snapshots(context.vitals.wrote),
            )

        shards = _Shards(make, context.meter)
        member = bus.join(group_of(names, name), names.name(decider.log))
        while not context.stopping.is_set():
            context.health.beat()
            shards.serve(member, context)
        shards.close()
        member.close()  # others take over while the last snapshots are written
        shards.settle(LAST_SNAPSHOT_S)
        return 0

    run(name, settings, main)
