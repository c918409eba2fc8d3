"""The processes of one supervisor: when each starts, restarts, is asked for readiness and stops."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from gangline.local.child import Child
from gangline.local.log_file import LogFile
from gangline.local.probe import Prober
from gangline.local.process_model import (
    BackOff,
    ProcessSpec,
    ProcessState,
    ProcessStatus,
    SupervisorError,
    check_specs,
)

PROBE_WHILE_STARTING_S = 0.05
PROBE_WHILE_LATE_S = 0.5
PROBE_WHILE_RUNNING_S = 5.0
LATE_AFTER_S = 10.0
LOG_CHECK_S = 2.0
HOPELESS_CRASHES = 6  # in a row and never ready: wait_ready gives up early

_log = logging.getLogger(__name__)


class Children:
    """All processes by name. Used under `changed`, the supervisor's lock.

    `wake` ends the sleep of the supervising thread, from any thread.
    """

    def __init__(
        self,
        data_dir: Path,
        back_off: BackOff,
        log_max_bytes: int,
        changed: threading.Condition,
        wake: Callable[[], None],
    ) -> None:
        self.is_stopping = False
        self.kill_at_once = False
        self._data_dir = data_dir
        self._back_off = back_off
        self._log_max_bytes = log_max_bytes
        self._changed = changed
        self._wake = wake
        self._by_name: dict[str, Child] = {}
        self._log_check_at = 0.0

    def __iter__(self) -> Iterator[Child]:
        """In the order they were added."""
        return iter(self._by_name.values())

    def open(self) -> None:
        """Begin to ask for readiness."""
        self._prober = Prober()

    def close(self) -> None:
        """Ask no more."""
        self._prober.close()

    def add(self, specs: Sequence[ProcessSpec]) -> None:
        """Add processes; each starts once what it depends on is ready. Raises SupervisorError."""
        check_specs(self._by_name, specs)
        for spec in specs:
            log = LogFile(self._data_dir / "logs" / f"{spec.name}.log", self._log_max_bytes)
            log.begin()
            self._by_name[spec.name] = Child(spec, self._data_dir, log)

    def named(self, names: Sequence[str] | None) -> list[Child]:
        """The named ones (default: all). Raises SupervisorError for an unknown name."""
        unknown = sorted(set(names or ()) - self._by_name.keys())
        if unknown:
            raise SupervisorError(f"no such process: {', '.join(unknown)}")
        return [self._by_name[name] for name in (names or self._by_name)]

    def status(self) -> list[ProcessStatus]:
        """A row for each process, in the order they were added."""
        now = time.monotonic()
        return [child.status(now, self.awaited(child)) for child in self]

    def turn(self, now: float) -> float:
        """Steps 1 to 5 of the supervisor's loop; returns how long to sleep, in seconds."""
        for child in self._by_name.values():
            code = child.reap()
            if code is not None:
                self._ended(child, code, now)
        has_started = False
        if self.is_stopping:
            self._stop_turn(now)
        else:
            has_started = self._start_turn(now)
        self._probe_due(now)
        if now >= self._log_check_at:
            self._log_check_at = now + LOG_CHECK_S
            for child in self._by_name.values():
                child.log.bound()
        return self._sleep_s(now, has_started)

    def _sleep_s(self, now: float, has_started: bool) -> float:
        if has_started:
            return 0.0  # what depends on it may be due at once
        deadlines = [self._log_check_at]
        for child in self._by_name.values():
            if child.state in (ProcessState.BACKING_OFF, ProcessState.STOPPING):
                deadlines.append(child.due_at)
            if self._to_probe(child):
                deadlines.append(child.probe_at)
        # A start that is due but waits for a dependency is woken by that one's readiness.
        return min(deadline - now for deadline in deadlines if deadline > now)

    def _ended(self, child: Child, code: int, now: float) -> None:
        lived_s = now - child.started_at
        child.exit_code = code
        was_ready, child.ready = child.ready, False
        how = _how_it_ended(code)
        self.note("exited", child.spec.name, None, f"{how} after {lived_s:.1f} s")
        if self.is_stopping:
            child.state = ProcessState.STOPPED
        elif child.spec.restart == "never":
            child.state = ProcessState.EXITED if code == 0 else ProcessState.FAILED
            # A task that was to run once and has no check of its own is ready by having succeeded.
            child.ready = code == 0 and (was_ready or child.spec.ready is None)
        else:
            child.crashes_in_row = self._back_off.crashes_in_row(child.crashes_in_row, lived_s)
            delay_s = self._back_off.delay_s(child.crashes_in_row)
            child.state = ProcessState.BACKING_OFF
            child.due_at = now + delay_s
            self.note("restarting", child.spec.name, None, f"again in {delay_s:.1f} s")

    def _start_turn(self, now: float) -> bool:
        has_started = False
        for child in self._by_name.values():
            is_due = child.state is ProcessState.WAITING or (
                child.state is ProcessState.BACKING_OFF and now >= child.due_at
            )
            if not is_due or self.awaited(child):
                continue
            if child.state is ProcessState.BACKING_OFF:
                child.restarts += 1
            child.spawn()
            child.started_at = now
            child.state = ProcessState.STARTING
            child.probe_at = now
            self.note("started", child.spec.name, child.pid, "started")
            if child.spec.ready is None:
                self._answered(child, child.pid, is_ready=True)
            has_started = True
        return has_started

    def _stop_turn(self, now: float) -> None:
        needed = {
            name
            for child in self._by_name.values()
            if child.is_alive
            for name in child.spec.depends_on
        }
        for child in self._by_name.values():
            if not child.is_alive:
                if child.state in (ProcessState.WAITING, ProcessState.BACKING_OFF):
                    child.state = ProcessState.STOPPED
            elif self.kill_at_once:
                child.kill()
            elif child.state is not ProcessState.STOPPING:
                if child.spec.name in needed:
                    continue
                child.state = ProcessState.STOPPING
                child.due_at = now + child.spec.stop_grace_s
                self.note("stopping", child.spec.name, child.pid, "SIGTERM sent")
                child.terminate()
            elif now >= child.due_at:
                child.due_at = now + 1.0
                child.kill()

    def _probe_due(self, now: float) -> None:
        for child in self._by_name.values():
            ready = child.spec.ready
            if ready is None or not self._to_probe(child) or now < child.probe_at:
                continue
            child.is_probed = True
            pid = child.pid
            self._prober.probe(ready, partial(self._take_answer, child, pid))

    def _to_probe(self, child: Child) -> bool:
        is_up = child.state in (ProcessState.STARTING, ProcessState.RUNNING)
        return is_up and child.spec.ready is not None and not child.is_probed

    def _take_answer(self, child: Child, pid: int | None, is_ready: bool) -> None:
        with self._changed:
            child.is_probed = False
            self._answered(child, pid, is_ready=is_ready)
        self._wake()

    def _answered(self, child: Child, pid: int | None, *, is_ready: bool) -> None:
        # The answer may speak of a process that has ended since.
        if child.pid != pid or child.state not in (ProcessState.STARTING, ProcessState.RUNNING):
            return
        if is_ready != child.ready:
            self.note("ready" if is_ready else "unready", child.spec.name, pid, "")
        child.ready = is_ready
        # Without a check, a running process does not prove that it came up.
        child.was_ever_ready = child.was_ever_ready or (is_ready and child.spec.ready is not None)
        if is_ready:
            child.state = ProcessState.RUNNING
        now = time.monotonic()
        child.probe_at = now + _probe_interval_s(is_ready=is_ready, age_s=now - child.started_at)
        self._changed.notify_all()

    def note(self, kind: str, name: str, pid: int | None, message: str) -> None:
        """Log what happened to a process, and wake the threads that wait for a change."""
        _log.debug("%s %s (%s): %s", kind, name, pid, message)
        with self._changed:
            self._changed.notify_all()

    def awaited(self, child: Child) -> tuple[str, ...]:
        """The processes that this one waits for."""
        return tuple(name for name in child.spec.depends_on if not self._by_name[name].ready)

    @staticmethod
    def is_hopeless(child: Child) -> bool:
        """Whether it will not come up: it has ended, or crashes again and again."""
        if child.state in (ProcessState.EXITED, ProcessState.FAILED, ProcessState.STOPPED):
            return True
        return not child.was_ever_ready and child.crashes_in_row >= HOPELESS_CRASHES

    def explain(self, child: Child, what: str) -> str:
        """A message about a process: its state, and why it is in it."""
        message = f"process {child.spec.name} {what} (state: {child.state})"
        if awaited := self.awaited(child):
            return f"{message}; it waits for {', '.join(awaited)}"
        if child.exit_code is not None:
            message += f"; last end: {_how_it_ended(child.exit_code)}"
        return f"{message}; the end of {child.log.path}:\n{child.log.tail() or '(empty)'}"


def _probe_interval_s(*, is_ready: bool, age_s: float) -> float:
    if is_ready:
        return PROBE_WHILE_RUNNING_S
    return PROBE_WHILE_STARTING_S if age_s < LATE_AFTER_S else PROBE_WHILE_LATE_S


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"
