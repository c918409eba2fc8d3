"""A service process: one decider loop on one connection, its crashes, pauses and restarts."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import Decider, EffectDone
from gangline_bus.loop_settings import LoopSettings
from gangline_bus.memory_clients import MemoryMember
from gangline_bus.ports import BusError
from gangline_bus.snapshot import SnapshotCodec
from gangline_checkpoints.core.model import Verified
from gangline_storage.errors import StoreError
from gangsim.bus import SimCrash, SimPause
from gangsim.engine import Violation
from gangsim.poison import PoisonError

if TYPE_CHECKING:
    from gangsim.world import World

SESSION_S = 8.0
TICK_S = 5.0
LOOK_S = 0.1
OFFSETS_REFRESH_S = 600.0
AGAIN_S = 30.0
BACKOFF_S = (0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Service:
    """What a kind of service is made of."""

    name: str
    decider: Callable[[], Decider[Any, Any]]
    fingerprint: Callable[[Any], str]
    codec: Callable[[], SnapshotCodec[Any]]
    execute: Callable[[str, object], object] | None = None


class SimExecutor:
    """Runs effects after a while; what was begun happens even if the process has died."""

    def __init__(self, process: ServiceProcess, execute: Callable[[str, object], object]) -> None:
        self._process = process
        self._execute = execute
        self._done: list[EffectDone | Exception] = []
        self._dropped: set[str] = set()
        self.pending = 0

    def submit(self, key: str, effect: object) -> None:
        """Begin."""
        self._dropped.discard(key)
        self.pending += 1
        delay_s = self._process.random.uniform(0.02, 0.8)
        tries = getattr(effect, "tries", 0)
        self._process.world.engine.after(delay_s + min(5.0, 0.5 * tries), self._work(key, effect))

    def drop(self, keys: AbstractSet[str]) -> None:
        """Try these no more where the store was away."""
        self._dropped |= keys

    def completed(self) -> list[EffectDone]:
        """What ended since the last call; raises what the executor raised."""
        found = []
        done, self._done = self._done, []
        for item in done:
            if isinstance(item, Exception):
                raise item
            found.append(item)
        return found

    def _work(self, key: str, effect: object) -> Callable[[], None]:
        def work() -> None:
            self.pending -= 1
            try:
                result = self._execute(key, effect)
            except StoreError:  # as of a survey
                if key not in self._dropped:
                    self.pending += 1
                    self._process.world.engine.after(AGAIN_S, self._work(key, effect))
                return
            except Exception as error:
                self._done.append(error)
            else:
                if isinstance(result, Verified):  # it was measured by a real clock
                    result = replace(result, verify_s=0.0)
                self._process.world.engine.note("effect", key, type(result).__name__)
                self._done.append(EffectDone(key, result))
            self._process.wake()

        return work


class ServiceProcess:
    """One instance and its successors: a supervisor starts it again after each end."""

    def __init__(self, world: World, service: Service, instance: str) -> None:
        self.world = world
        self.service = service
        self.name = f"{service.name}/{instance}"
        self.random = world.engine.stream(f"process/{self.name}")
        self.clock_offset_s = 0.0
        self.alive = False
        self.paused = False
        self.starts = 0
        self._failures = 0
        self._held_commit: Callable[[], None] | None = None
        self._stale_owner = False
        self._looks_s = 0.0
        self._wake_at_s: float | None = None
        self.client = ""
        self.loop: DeciderLoop[Any] | None = None
        self.executor: SimExecutor | None = None

    def start(self) -> None:
        """A new process of this instance."""
        self.starts += 1
        self.client = f"{self.name}#{self.starts}"
        self.alive, self.loop, self._held_commit = True, None, None
        self._wake_at_s = None
        self.world.engine.note("start", self.client)
        bus = self.world.broker.connect(self.client)
        decider = self.world.poisons.around(self.service.decider())
        self._decider = decider
        self._bus = bus
        if self.service.execute is not None:
            self.executor = SimExecutor(self, self.service.execute)
        self._member = MemoryMember(
            bus, f"gangline.{self.service.name}", self.world.names.name(decider.log)
        )
        self.wake()

    def wake(self, delay_s: float | None = None) -> None:
        """Cycle soon, or after a delay."""
        if not self.alive or self.paused:
            return
        soon_s = self.random.uniform(0.002, 0.03) if delay_s is None else delay_s
        at_s = self.world.engine.now_s + soon_s
        if self._wake_at_s is not None and self._wake_at_s <= at_s:
            return
        self._wake_at_s = at_s
        client = self.client
        self.world.engine.after(soon_s, lambda: self._turn(client, at_s))

    def crash(self, why: str) -> None:
        """The process is gone; its membership ends with its session, and a new one starts."""
        if not self.alive:
            return
        self.world.engine.note("crash", self.client, why)
        self.world.engine.count(f"crash: {why}")
        self.alive = False
        self.paused = False
        self.loop = None
        self._lose_session()
        backoff_s = BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)]
        self._failures += 1
        self.world.engine.after(backoff_s * self.random.uniform(0.8, 1.2), self.start)

    def pause(self) -> None:
        """The process stands still; others take over when its session ends."""
        if self.alive and not self.paused:
            self.world.engine.note("pause", self.client)
            self.paused = True
            self._lose_session()

    def resume(self) -> None:
        """It continues, and for one cycle it does not know what it missed."""
        if not self.alive or not self.paused:
            return
        self.world.engine.note("resume", self.client)
        self.paused = False
        self._stale_owner = True
        if self._held_commit is not None:
            commit, self._held_commit = self._held_commit, None
            try:
                commit()
            except (BusError, SimCrash, SimPause) as error:
                self.crash(f"zombie: {type(error).__name__}")
            else:
                self.crash("after the commit it was paused in")
            self.world.after_step()
            return
        self._wake_at_s = None
        self.wake()

    def _lose_session(self) -> None:
        client = self.client

        def lose() -> None:
            if self.world.broker.down:
                self.world.engine.after(1.0, lose)
                return
            self.world.broker.lose(client)
            for process in self.world.processes:
                if process.service is self.service:
                    process.wake()

        self.world.engine.after(SESSION_S, lose)

    def _turn(self, client: str, at_s: float) -> None:
        if client != self.client or not self.alive or self.paused or self._wake_at_s != at_s:
            return
        self._wake_at_s = None
        try:
            written = self._serve()
        except SimCrash as point:
            self.crash(f"at {point}")
        except SimPause:
            self.pause()
        except (BusError, PoisonError) as error:
            self.crash(type(error).__name__)
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"{self.client}: {type(error).__name__}: {error}") from error
        else:
            busy = written or (self.executor is not None and self.loop is not None)
            if written:
                self._failures = 0
            self.wake(None if written else (1.0 if busy and self._unsaved() else TICK_S))
        self.world.after_step()

    def _unsaved(self) -> bool:
        return self.loop is not None and bool(self.loop._offsets.moved())

    def _serve(self) -> int:
        owned = self._stale_owner or 0 in self._member.owned(0.0)
        self._stale_owner = False
        if self.loop is not None and not owned:
            raise BusError("the shard was given to another instance")
        if not owned:
            return 0
        if self.loop is None:
            loop: DeciderLoop[Any] = self.world.parts.loop(
                self._bus,
                self._decider,
                self._now,
                stopwatch=self._stopwatch,
                names=self.world.names,
                settings=LoopSettings(
                    batch=50,
                    tick_interval_s=TICK_S,
                    offsets_refresh_s=OFFSETS_REFRESH_S,
                    instance=self.client,
                ),
                executor=self.executor,
                snapshots=self.world.snapshots.of(self.service, self.world.parts.snapshot_every),
            )
            loop._skips.skips = lambda item, error: False  # type: ignore[method-assign]
            loop.take_over()
            self.world.snapshots.check(self.service, loop)
            self.loop = loop
            self._remember_commits(loop)
            self.world.engine.note("leads", self.client, loop.next_seq)
            self.world.check_takeover(self)
        written = self.loop.cycle(0.0)
        self.world.note_live(self)
        return written + (1 if self._unread() else 0)

    def _unread(self) -> bool:
        """Whether more input is there than one batch."""
        positions = self.loop._reader.positions() if self.loop is not None else {}
        return self.world.broker.readable(positions)

    def _remember_commits(self, loop: DeciderLoop[Any]) -> None:
        """Keep what a commit was called with, to do it after a pause."""
        commit = loop._writer.commit

        def remembered(*arguments: Any) -> None:
            self._held_commit = lambda: commit(*arguments)
            commit(*arguments)
            self._held_commit = None

        loop._writer.commit = remembered  # type: ignore[method-assign, assignment]

    def _stopwatch(self) -> float:
        """Each look takes a while, so that large batches are left for the next cycle."""
        self._looks_s += LOOK_S
        return self.world.engine.now_s + self._looks_s

    def _now(self) -> datetime:
        utc, off_s = self.world.engine.utc, self.clock_offset_s
        return utc + timedelta(seconds=off_s) if off_s else utc
