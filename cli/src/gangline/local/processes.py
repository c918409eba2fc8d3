"""The process supervisor of the embedded platform.

One thread owns all children: it starts them (they die with it, PR_SET_PDEATHSIG), waits on their
pidfds, starts again what crashed, and stops them in reverse order. Readiness is asked in other
threads. Each turn of its loop:

1. see which children have ended, and decide when they start again;
2. take in the answers of readiness checks;
3. start what is due and whose dependencies are ready (or, when stopping, stop what nothing
   depends on any more);
4. ask for readiness where it is time to;
5. bound the log files;
6. tell the callback what happened, then sleep until the next deadline, exit or wake-up.
"""

import contextlib
import logging
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from gangline.local.child import Child
from gangline.local.leftovers import DataDirLock, end_leftovers, end_strays
from gangline.local.log_file import MAX_BYTES, LogFile
from gangline.local.probe import Prober
from gangline.local.process_model import (
    BackOff,
    EventKind,
    ProcessEvent,
    ProcessSpec,
    ProcessState,
    ProcessStatus,
    SupervisorError,
    check_specs,
)

__all__ = [
    "BackOff",
    "ProcessEvent",
    "ProcessSpec",
    "ProcessState",
    "ProcessStatus",
    "Supervisor",
    "SupervisorError",
    "stop_signals_interrupt",
]

PROBE_WHILE_STARTING_S = 0.05
PROBE_WHILE_LATE_S = 0.5
PROBE_WHILE_RUNNING_S = 5.0
LATE_AFTER_S = 10.0
LOG_CHECK_S = 2.0
HOPELESS_CRASHES = 6  # in a row and never ready: wait_ready gives up early

_log = logging.getLogger(__name__)


class Supervisor:
    """Runs processes for one data directory, alone.

    Use it as a context manager: entering takes the directory's lock and ends what a killed
    predecessor left (SupervisorError when another supervisor is at work); leaving stops all.
    Logs are `<data_dir>/logs/NAME.log`, records of running children `<data_dir>/run/NAME.json`.
    `on_event` is called from the supervising thread and must return soon.
    """

    def __init__(
        self,
        data_dir: Path,
        on_event: Callable[[ProcessEvent], None] | None = None,
        *,
        back_off: BackOff | None = None,
        log_max_bytes: int = MAX_BYTES,
    ) -> None:
        self.data_dir = data_dir.resolve()
        self._on_event = on_event
        self._back_off = back_off or BackOff()
        self._log_max_bytes = log_max_bytes
        self._lock = DataDirLock(self.data_dir)
        self._children: dict[str, Child] = {}
        self._changed = threading.Condition()
        self._events: list[ProcessEvent] = []
        self._stopping = False
        self._kill_now = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._wake_fd = -1
        self._log_check_at = 0.0

    def __enter__(self) -> Self:
        """As `claim`."""
        self.claim()
        return self

    def __exit__(self, *_: object) -> None:
        """As `stop`."""
        self.stop()

    def claim(self) -> None:
        """Take the data directory and end leftovers; start the supervising thread."""
        self._lock.acquire()
        for record in end_leftovers(self.data_dir):
            self._note("leftover", record.name, record.pid, "ended what an earlier run had left")
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._prober = Prober()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Add processes and start each as soon as what it depends on is ready; returns at once.

        May be called again with more. Raises SupervisorError when a name is taken or a
        dependency is unknown or cyclic.
        """
        with self._changed:
            self._check_alive()
            check_specs(self._children, specs)
            for spec in specs:
                if spec.cwd is not None and not spec.cwd.is_dir():
                    raise SupervisorError(f"process {spec.name}: no directory {spec.cwd}")
            for spec in specs:
                log = LogFile(self.data_dir / "logs" / f"{spec.name}.log", self._log_max_bytes)
                log.begin()
                self._children[spec.name] = Child(spec, self.data_dir, log)
        self._wake()

    def status(self) -> list[ProcessStatus]:
        """Return a row for each process, in the order they were added."""
        with self._changed:
            if self._failure is not None:
                raise SupervisorError("the supervisor has failed") from self._failure
            now = time.monotonic()
            return [child.status(now, self._awaited(child)) for child in self._children.values()]

    def wait_ready(self, timeout_s: float, names: Sequence[str] | None = None) -> None:
        """Return once the named processes (default: all) are ready at the same time.

        Raises SupervisorError with the tail of the log when one ended for good, crashes again and
        again, or is not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            unknown = sorted(set(names or ()) - self._children.keys())
            if unknown:
                raise SupervisorError(f"no such process: {', '.join(unknown)}")
            while True:
                self._check_alive()
                wanted = [self._children[name] for name in (names or self._children)]
                pending = [child for child in wanted if not child.ready]
                if not pending:
                    return
                for child in wanted:
                    if not child.ready and self._is_hopeless(child):
                        raise SupervisorError(self._explain(child, "did not come up"))
                if not self._changed.wait(deadline - time.monotonic()):
                    late = next((c for c in pending if not self._awaited(c)), pending[0])
                    raise SupervisorError(
                        self._explain(late, f"was not ready within {timeout_s:.0f} s")
                    )

    def stop(self) -> None:
        """Stop all processes, dependents first, and free the data directory; may be repeated.

        SIGTERM, the spec's grace, SIGKILL. Interrupted (a second Ctrl-C), it kills at once.
        """
        thread = self._thread
        if thread is None:
            self._lock.release()
            return
        with self._changed:
            self._stopping = True
        self._wake()
        try:
            thread.join()
        except KeyboardInterrupt:
            self._kill_now = True
            self._wake()
            thread.join()
        self._thread = None
        self._prober.close()
        end_strays(self.data_dir)
        os.close(self._wake_fd)
        self._wake_fd = -1
        self._lock.release()

    # The supervising thread

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    sleep_s = self._turn(time.monotonic())
                    descriptors = [c.pidfd for c in self._children.values() if c.pidfd >= 0]
                    is_done = self._stopping and not descriptors
                self._tell()
                if is_done:
                    return
                self._sleep(descriptors, sleep_s)
        except BaseException as error:  # noqa: BLE001  (no child may outlive its supervisor)
            _log.exception("the supervisor has failed; its processes are killed")
            with self._changed:
                self._failure = error
                self._changed.notify_all()
                for child in self._children.values():
                    child.kill()

    def _turn(self, now: float) -> float:
        for child in self._children.values():
            code = child.reap()
            if code is not None:
                self._ended(child, code, now)
        has_started = False
        if self._stopping:
            self._stop_turn(now)
        else:
            has_started = self._start_turn(now)
        self._ask_turn(now)
        if now >= self._log_check_at:
            self._log_check_at = now + LOG_CHECK_S
            for child in self._children.values():
                child.log.bound()
        return self._sleep_s(now, has_started)

    def _sleep_s(self, now: float, has_started: bool) -> float:
        if has_started:
            return 0.0  # what depends on it may be due at once
        deadlines = [self._log_check_at]
        for child in self._children.values():
            if child.state in (ProcessState.BACKING_OFF, ProcessState.STOPPING):
                deadlines.append(child.due_at)
            if self._is_to_be_asked(child):
                deadlines.append(child.probe_at)
        # A start that is due but waits for a dependency is woken by that one's readiness.
        return min(deadline - now for deadline in deadlines if deadline > now)

    def _ended(self, child: Child, code: int, now: float) -> None:
        lived_s = now - child.started_at
        child.exit_code = code
        was_ready, child.ready = child.ready, False
        how = _how_it_ended(code)
        self._note("exited", child.spec.name, None, f"{how} after {lived_s:.1f} s")
        if self._stopping:
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
            self._note("restarting", child.spec.name, None, f"again in {delay_s:.1f} s")

    def _start_turn(self, now: float) -> bool:
        has_started = False
        for child in self._children.values():
            is_due = child.state is ProcessState.WAITING or (
                child.state is ProcessState.BACKING_OFF and now >= child.due_at
            )
            if not is_due or self._awaited(child):
                continue
            if child.state is ProcessState.BACKING_OFF:
                child.restarts += 1
            child.spawn()
            child.started_at = now
            child.state = ProcessState.STARTING
            child.probe_at = now
            self._note("started", child.spec.name, child.pid, "started")
            if child.spec.ready is None:
                self._answered(child, child.pid, is_ready=True)
            has_started = True
        return has_started

    def _stop_turn(self, now: float) -> None:
        needed = {
            name
            for child in self._children.values()
            if child.is_alive
            for name in child.spec.depends_on
        }
        for child in self._children.values():
            if not child.is_alive:
                if child.state in (ProcessState.WAITING, ProcessState.BACKING_OFF):
                    child.state = ProcessState.STOPPED
            elif self._kill_now:
                child.kill()
            elif child.state is not ProcessState.STOPPING:
                if child.spec.name in needed:
                    continue
                child.state = ProcessState.STOPPING
                child.due_at = now + child.spec.stop_grace_s
                self._note("stopping", child.spec.name, child.pid, "SIGTERM sent")
                child.terminate()
            elif now >= child.due_at:
                child.due_at = now + 1.0
                child.kill()

    def _ask_turn(self, now: float) -> None:
        for child in self._children.values():
            ready = child.spec.ready
            if ready is None or not self._is_to_be_asked(child) or now < child.probe_at:
                continue
            child.is_probed = True
            pid = child.pid
            self._prober.ask(ready, partial(self._answered_elsewhere, child, pid))

    def _is_to_be_asked(self, child: Child) -> bool:
        is_up = child.state in (ProcessState.STARTING, ProcessState.RUNNING)
        return is_up and child.spec.ready is not None and not child.is_probed

    def _answered_elsewhere(self, child: Child, pid: int | None, is_ready: bool) -> None:
        with self._changed:
            child.is_probed = False
            self._answered(child, pid, is_ready=is_ready)
        self._wake()

    def _answered(self, child: Child, pid: int | None, *, is_ready: bool) -> None:
        # The answer may speak of a process that has ended since.
        if child.pid != pid or child.state not in (ProcessState.STARTING, ProcessState.RUNNING):
            return
        if is_ready != child.ready:
            self._note("ready" if is_ready else "unready", child.spec.name, pid, "")
        child.ready = is_ready
        # Without a check, running is no proof that it came up.
        child.was_ever_ready = child.was_ever_ready or (is_ready and child.spec.ready is not None)
        if is_ready:
            child.state = ProcessState.RUNNING
        now = time.monotonic()
        child.probe_at = now + _probe_interval_s(is_ready=is_ready, age_s=now - child.started_at)
        self._changed.notify_all()

    def _sleep(self, descriptors: list[int], sleep_s: float) -> None:
        poller = select.poll()
        for descriptor in [self._wake_fd, *descriptors]:
            poller.register(descriptor, select.POLLIN)
        if any(fd == self._wake_fd for fd, _ in poller.poll(math.ceil(sleep_s * 1000))):
            os.eventfd_read(self._wake_fd)

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    # Reports to others
    def _note(self, kind: EventKind, name: str, pid: int | None, message: str) -> None:
        self._events.append(ProcessEvent(kind, name, pid, message))
        with self._changed:
            self._changed.notify_all()

    def _tell(self) -> None:
        # Outside the lock: the callback may take locks whose holders ask for the status.
        with self._changed:
            events, self._events = self._events, []
        for event in events:
            _log.debug("%s %s %s", event.kind, event.name, event.message)
            if self._on_event is not None:
                try:
                    self._on_event(event)
                except Exception:  # noqa: BLE001  (a callback's error is its own)
                    _log.exception("the callback for supervisor events has failed")

    def _awaited(self, child: Child) -> tuple[str, ...]:
        return tuple(name for name in child.spec.depends_on if not self._children[name].ready)

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise SupervisorError(f"the supervisor has failed: {self._failure}")
        if self._thread is None or self._stopping:
            raise SupervisorError("the supervisor is not running")

    @staticmethod
    def _is_hopeless(child: Child) -> bool:
        if child.state in (ProcessState.EXITED, ProcessState.FAILED, ProcessState.STOPPED):
            return True
        return not child.was_ever_ready and child.crashes_in_row >= HOPELESS_CRASHES

    def _explain(self, child: Child, what: str) -> str:
        message = f"process {child.spec.name} {what} (state: {child.state})"
        if awaited := self._awaited(child):
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


@contextlib.contextmanager
def stop_signals_interrupt() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does.

    So does SIGINT where the shell had it ignored, as it does for what it starts in the background.
    For the main thread, around the supervisor's own context, so that each of the three signals
    leads to an orderly stop.
    """
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
