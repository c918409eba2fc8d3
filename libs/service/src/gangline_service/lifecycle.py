"""The life of a service process: set up, run, stop in order, or end at once.

1. Logging, telemetry and the health server start; the port file is written.
2. `main(context)` runs on the main thread until it returns or raises.
3. SIGTERM or SIGINT sets `context.stopping`; main then has `stop_grace_s` seconds to return. A
   second signal, or the end of that time, ends the process by force (code 1).
4. Every end is `os._exit` after flushing: a client thread that hangs in a C library cannot hold the
   process, and a supervisor starts a new one (crash-only).
5. With `restarts`, SIGHUP sets `context.restarting`. A main that then returns a `Restart` restarts
   its program by exec: the same pid, children and kept descriptors.

Signals are counted by a thread that reads Python's wake-up descriptor, because a Python signal
handler waits for as long as the main thread sits in a C call.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NoReturn, TypeVar

from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer

from gangline_bus.ports import BusDenied

from . import logging, telemetry
from .health import Health
from .health_server import HealthServer
from .settings import ServiceSettings
from .vitals import Vitals

EXIT_OK = 0
EXIT_CRASH = 1
EXIT_DENIED = 77
"""The bus refuses the process (EX_NOPERM of sysexits.h): to start it again alone does not help."""

_FLUSH_S = 2.0
_STOPS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_STOPS, signal.SIGHUP)
_ENOUGH = 0  # no signal has this number: count no more
_LINE_VARIABLE = "GANGLINE_SIGNAL_LINE"

SettingsT = TypeVar("SettingsT", bound=ServiceSettings)
SettingsT_co = TypeVar("SettingsT_co", bound=ServiceSettings, covariant=True)


@dataclass(frozen=True)
class Context(Generic[SettingsT_co]):
    """The argument of `main`. It returns soon after `stopping` is set and calls `health.beat`.

    `restarting` is set by a request to restart the program in this process.
    """

    settings: SettingsT_co
    health: Health
    stopping: threading.Event
    log: logging.Log
    meter: Meter
    tracer: Tracer
    restarting: threading.Event = field(default_factory=threading.Event)
    vitals: Vitals = field(default_factory=Vitals)


@dataclass(frozen=True, slots=True)
class Restart:
    """The value that `main` returns to restart its program in this process.

    `keep` are the open file descriptors that the next program takes over, all others are closed;
    `environment` holds variables for it alone.
    """

    keep: frozenset[int] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)


def run(
    service: str,
    settings: SettingsT,
    main: Callable[[Context[SettingsT]], int | Restart | None],
    *,
    restarts: bool = False,
) -> NoReturn:
    """Run `main` as this process's life and exit with its code (None is 0). Never returns.

    `restarts`: SIGHUP requests a restart in place; without it, SIGHUP ends the process. An
    exception out of `main`, or out of any thread, is logged once with its redacted traceback and
    ends the process with code 1; BusDenied with its message alone and code 77. Call it on the main
    thread; install no signal handlers.
    """
    logging.configure(
        service,
        settings.instance_id,
        level=settings.log_level,
        log_format=settings.log_format,
        secrets=settings.secret_values(),
    )
    faulthandler.enable()
    log = logging.get_logger(f"gangline.{service}")
    process = _Process(service, settings, log)
    threading.excepthook = process.thread_failed
    try:
        process.open(restarts=restarts)
        result = main(process.context(settings)) or EXIT_OK
        if isinstance(result, Restart):
            process.restart_in_place(result)
        code = result
    except SystemExit as stop:
        code = _exit_code(stop, log)
    except BusDenied as error:
        process.denied(error)
    except BaseException:  # whatever it is: log it once, end the process
        log.critical("service.crashed", exc_info=True)
        code = EXIT_CRASH
    process.end(code)


_denied = threading.Lock()
"""Held once the bus has refused this process."""


def end_denied(error: BusDenied) -> None:
    """End this process, since the bus refuses it. From any thread; returns before the end.

    The first error counts: each record that a process could not send has one.
    """
    if not _denied.acquire(blocking=False):
        return

    def fail() -> None:
        raise error

    threading.Thread(target=fail, name="denied", daemon=True).start()


def _exit_code(stop: SystemExit, log: logging.Log) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or EXIT_OK
    log.critical("service.crashed", error=str(stop.code))
    return EXIT_CRASH


class _Process:
    """The parts that surround main, and the one way out."""

    def __init__(self, service: str, settings: ServiceSettings, log: logging.Log) -> None:
        self._service = service
        self._settings = settings
        self._log = log
        self._ending, self._denying = threading.Lock(), threading.Lock()
        self.stopping = threading.Event()
        self.restarting = threading.Event()
        self.health = Health(beat_timeout_s=settings.beat_timeout_s)
        self._telemetry = telemetry.start(service, settings.instance_id, settings.otlp_endpoint)
        self._server: HealthServer | None = None
        self._signals, self._wakeup = _signal_line()
        self._counter = threading.Thread(target=self._count_signals, name="signals", daemon=True)

    def open(self, *, restarts: bool) -> None:
        """Listen for signals and health requests."""
        self._telemetry.install()
        self._watch_signals(_SIGNALS if restarts else _STOPS)
        try:
            server = HealthServer(
                self.health,
                service=self._service,
                instance=self._settings.instance_id,
                host=self._settings.health_host,
                port=self._settings.health_port,
                exposition=self._telemetry.exposition,
                secrets=self._settings.secret_values(),
            )
        except OSError as error:
            raise SystemExit(
                f"cannot serve health on {self._settings.health_host}:"
                f"{self._settings.health_port} ({error.strerror}): set GANGLINE_HEALTH_HOST and "
                "GANGLINE_HEALTH_PORT to an address that is free here (port 0 takes a free one)"
            ) from None
        server.start(self._settings.health_file)
        self._server = server
        self._log.info("service.started", health=server.address.url, pid=os.getpid())

    def context(self, settings: SettingsT) -> Context[SettingsT]:
        """The context for main; `settings` are this process's, in the service's own type."""
        name = f"gangline.{self._service}"
        return Context(
            settings=settings,
            health=self.health,
            stopping=self.stopping,
            log=self._log,
            meter=self._telemetry.meter(name),
            tracer=self._telemetry.tracer(name),
            restarting=self.restarting,
        )

    def thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        """A thread that died leaves a process that only looks alive: end it."""
        if failure.exc_type is SystemExit:
            return
        error = failure.exc_value or failure.exc_type()
        if isinstance(error, BusDenied):
            self.denied(error)
        name = failure.thread.name if failure.thread else "unknown"
        self._log.critical("service.crashed", thread=name, exc_info=error)
        self.end(EXIT_CRASH)

    def denied(self, error: BusDenied) -> NoReturn:
        """Log the refusal and exit; several calls may have met it."""
        if not self._denying.acquire(blocking=False):
            threading.Event().wait()  # the first caller ends the process
        self._log.critical("service.denied", error=str(error))
        self.end(EXIT_DENIED)

    def end(self, code: int) -> NoReturn:
        """Flush and exit; of several callers the first one's code counts."""
        if not self._ending.acquire(blocking=False):
            threading.Event().wait()  # the first caller ends the process
        self.health.set("process", ok=False, detail="the service has stopped")
        if not self._telemetry.shutdown(_FLUSH_S):
            self._log.warning("telemetry.not_flushed", waited_s=_FLUSH_S)
        self._log.info("service.stopped", code=code)
        _exit_now(self._remove_port_file, code)

    def restart_in_place(self, restart: Restart) -> NoReturn:
        """Run the program again in this process; of several ends the first one counts."""
        if not self._ending.acquire(blocking=False):
            threading.Event().wait()  # another thread ends the process
        try:
            self._telemetry.shutdown(_FLUSH_S)
            self._log.info("service.restarts", pid=os.getpid())
            for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 -- also of C libraries
                with contextlib.suppress(OSError):
                    kept = int(entry) <= 2 or int(entry) in restart.keep
                    os.set_inheritable(int(entry), kept)
            sys.stdout.flush()
            sys.stderr.flush()
            environment = {**os.environ, **restart.environment, **self._leave_signals()}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606
        except BaseException:  # noqa: BLE001 -- no way back: others may wait for this end
            self._log.critical(
                "service.crashed", error="the program could not be restarted", exc_info=True
            )
            _exit_now(self._remove_port_file, EXIT_CRASH)

    def _remove_port_file(self) -> None:
        if self._server is not None:
            self._server.remove_port_file()

    def _watch_signals(self, numbers: Sequence[signal.Signals]) -> None:
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            # Needed for the wake-up; does nothing itself, as Event.set could deadlock in it.
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # see `_leave_signals`
        _keep_from_forked_children(numbers)
        self._counter.start()

    def _leave_signals(self) -> Mapping[str, str]:
        """Stop counting: the next program counts, on the same line, which is its variable.

        Signals from now on wait for it on that line, or stay blocked where no thread is left.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._wakeup.send(bytes([_ENOUGH]))
        self._counter.join()
        if self.stopping.is_set():
            self._wakeup.send(bytes([signal.SIGTERM]))
        for end in (self._signals, self._wakeup):
            end.set_inheritable(True)
        return {_LINE_VARIABLE: f"{self._signals.fileno()} {self._wakeup.fileno()}"}

    def _count_signals(self) -> None:
        first = self._next_stop(timeout_s=None)
        grace_s = self._settings.stop_grace_s
        self._log.info("service.stopping", signal=first, grace_s=grace_s)
        self.health.set("process", ok=False, detail="the service is stopping")
        self.stopping.set()
        second = self._next_stop(grace_s)
        reason = f"a second signal: {second}" if second else "the grace period has passed"
        self._log.error("service.forced_exit", reason=reason)
        _exit_now(self._remove_port_file, EXIT_CRASH)

    def _next_stop(self, timeout_s: float | None) -> str | None:
        """The name of the next stop signal; None when none came within `timeout_s` seconds."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._signals], [], [], left_s)[0]:
                return None
            number = self._signals.recv(1)[0]
            if number == _ENOUGH:
                raise SystemExit  # of this thread
            if number == signal.SIGHUP:
                self.restarting.set()
            if number in _STOPS:
                return signal.Signals(number).name


def _signal_line() -> tuple[socket.socket, socket.socket]:
    """Where the numbers of signals are read, a byte each, and where they are written."""
    left = os.environ.pop(_LINE_VARIABLE, "").split()
    if not left:
        return socket.socketpair()
    signals, wakeup = (socket.socket(fileno=int(number)) for number in left)
    for end in (signals, wakeup):
        end.set_inheritable(False)
    return signals, wakeup


def _keep_from_forked_children(numbers: Sequence[signal.Signals]) -> None:
    """A forked child's signals must not stop its parent through the shared descriptor.

    They are blocked over the fork: one could reach the child before it has closed the descriptor.
    """
    before: list[set[signal.Signals | int]] = []

    def block() -> None:
        before.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, numbers)))

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.pop())

    def forget() -> None:
        signal.set_wakeup_fd(-1)
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        restore()

    os.register_at_fork(before=block, after_in_parent=restore, after_in_child=forget)


def _exit_now(last: Callable[[], None], code: int) -> NoReturn:
    with contextlib.suppress(Exception):
        last()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
