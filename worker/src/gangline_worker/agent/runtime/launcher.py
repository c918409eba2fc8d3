"""Starts ranks, watches each in a thread of its own, and ends them with all they started.

A watcher's cycle: 1. pass on what arrives on stdout and stderr; 2. when the process ends, kill
what is left of its session, read both pipes to their end and the socket's last messages;
3. publish the last lines, then report the exit. So a rank's death loses no line.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TypeVar

from gangline_worker.agent.decide.inputs import RankExited
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.host.forked import Forked
from gangline_worker.agent.host.sweep import descends, kill_rank, reap_orphans, started_s
from gangline_worker.agent.isolation.cold_start import Launch, start_cold
from gangline_worker.agent.isolation.oom import OomKills
from gangline_worker.agent.isolation.rank_exec import tied_command
from gangline_worker.agent.isolation.sandbox import Sandbox
from gangline_worker.agent.warm.image_standby import ImageStandby
from gangline_worker.agent.warm.process import WarmRank, WarmStart, warm_arguments
from gangline_worker.agent.warm.rank import WarmRequest

from .log_lines import KeptLog, LogBatcher, Stream
from .pod_hosts import PodHosts, PodRank

_PR_SET_CHILD_SUBREAPER = 36
_FLUSH_S = 0.2
_DRAIN_S = 3.0
_READ_BYTES = 65_536
StartedT = TypeVar("StartedT", subprocess.Popen[bytes], Sandbox, ImageStandby)
_OUT_OF_MEMORY = ("OutOfMemoryError", "CUDA out of memory", "MemoryError")


def become_subreaper() -> None:
    """Inherit what ranks leave behind, so that it can be found and collected."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


@dataclass(frozen=True, slots=True)
class KeptRank:
    """A rank that runs: its pid, the descriptors of its pipes, and where its log stands."""

    rank: RankKey
    pid: int
    stdout: int
    stderr: int
    log: KeptLog
    in_pod: bool = False


class AdoptedRank:
    """A rank that this process started before the agent reloaded; as `subprocess.Popen`."""

    def __init__(self, kept: KeptRank) -> None:
        for descriptor in (kept.stdout, kept.stderr):
            os.set_inheritable(descriptor, False)
        self._process = Forked(kept.pid)
        self.pid = kept.pid
        self.stdout = os.fdopen(kept.stdout, "rb", 0)
        self.stderr = os.fdopen(kept.stderr, "rb", 0)

    def wait(self) -> int:
        """Collect its status: its exit code, or the negative number of a signal."""
        return self._process.wait()


class RankProcess:
    """One running rank, by its key and its token. Made by `Launcher`."""

    def __init__(
        self,
        rank: RankKey,
        token: str,
        process: subprocess.Popen[bytes] | WarmRank | AdoptedRank | PodRank,
        logs: LogBatcher,
        launcher: Launcher,
    ) -> None:
        self.rank = rank
        self.pid = process.pid
        self.begun_s = _begun_s(process)
        self._token = token
        self._process = process
        self._logs = logs
        self._launcher = launcher
        self._ended = False
        self._rest_s = 0.0
        self._status = 0
        self._lock = threading.Lock()
        self._oom_kills = OomKills(process.pid)
        self._oom_killed = False
        name = f"rank-{rank.rank}"
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._thread.start()

    def terminate(self) -> None:
        """SIGTERM to this process alone, unless it has ended."""
        self._unless_ended(lambda: self._signal(signal.SIGTERM, group=False))

    def kill(self) -> None:
        """SIGKILL to the rank's process group, unless this process has ended."""
        self._unless_ended(lambda: self._signal(signal.SIGKILL, group=True))

    def _signal(self, number: int, *, group: bool) -> None:
        if isinstance(self._process, PodRank):  # its pod knows whether the pid is still its own
            self._process.signal(number, group=group)
        else:
            (os.killpg if group else os.kill)(self.pid, number)

    def _unless_ended(self, send: Callable[[], None]) -> None:
        with self._lock:
            if not self._ended:
                with contextlib.suppress(ProcessLookupError):
                    send()

    def kept(self) -> KeptRank:
        """Once its watcher has heeded a pause: the rank, to be adopted."""
        pipes = self._streams()
        return KeptRank(
            self.rank,
            self.pid,
            pipes["stdout"].fileno(),
            pipes["stderr"].fileno(),
            self._logs.kept(),
            isinstance(self._process, PodRank),
        )

    def settle(self) -> None:
        """Wait until its watcher has heeded a pause, or has reported its end."""
        self._thread.join()

    def _watch(self) -> None:
        if not self._pass_on_until_end():
            self._logs.finish()
            return
        with self._lock:
            self._ended = True
            self._oom_killed = self._oom_kills.lately()
        kill_rank(self.pid, self._token)  # first: what traces it would hold back its status
        self._status = self._process.wait()
        self._drain()
        self._logs.feed("stdout", b"")
        self._logs.feed("stderr", b"")
        self._logs.flush()
        self._launcher.finished(self, self._exit())

    def _streams(self) -> dict[Stream, IO[bytes]]:
        stdout, stderr = self._process.stdout, self._process.stderr
        if stdout is None or stderr is None:
            raise RuntimeError("a rank is started with pipes")
        return {"stdout": stdout, "stderr": stderr}

    def _pass_on_until_end(self) -> bool:
        """Pass on lines until the process has ended; it is not collected yet. False: paused."""
        try:
            ended = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it ended in its pod before this agent took over
            return True
        due = time.monotonic() + _FLUSH_S
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ, None)
            for stream, pipe in self._streams().items():
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, stream)
            while not self._launcher.paused:
                ready = selector.select(max(0.0, due - time.monotonic()))
                if any(key.data is None for key, _ in ready):
                    os.close(ended)
                    return True
                for key, _ in ready:
                    if not self._read(key.data, key.fd):
                        selector.unregister(key.fileobj)
                time.sleep(self._rest_s)
                self._rest_s = 0.0
                if time.monotonic() >= due:
                    self._logs.flush()
                    self._oom_kills.count()
                    due = time.monotonic() + _FLUSH_S
        os.close(ended)
        return False

    def _read(self, stream: Stream, descriptor: int) -> bool:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        if data:
            self._rest_s += self._logs.feed(stream, data)
        return bool(data)

    def _drain(self) -> None:
        """Read both pipes to their end; give up on one that something still holds.

        However late this thread gets its turn, it reads what a pipe holds then.
        """
        deadline, is_late = time.monotonic() + _DRAIN_S, False
        with selectors.DefaultSelector() as selector:
            for stream, pipe in self._streams().items():
                selector.register(pipe, selectors.EVENT_READ, stream)
            while selector.get_map() and not is_late:
                is_late = time.monotonic() >= deadline
                for key, _ in selector.select(0.0 if is_late else 0.1):
                    if not self._read(key.data, key.fd):
                        selector.unregister(key.fileobj)
        for pipe in self._streams().values():
            pipe.close()

    def _exit(self) -> RankExited:
        status = self._status
        words = self._logs.last_words
        memory = any(name in words for name in _OUT_OF_MEMORY)
        if status >= 0:
            return RankExited(self.rank, code=status, out_of_memory=memory, last_words=words)
        killed = -status == signal.SIGKILL and self._oom_killed
        return RankExited(
            self.rank, signal=-status, out_of_memory=memory or killed, last_words=words
        )


def _begun_s(process: subprocess.Popen[bytes] | WarmRank | AdoptedRank | PodRank) -> float:
    """A process that waited warm is older than the program that it becomes now."""
    since_s = started_s(process.pid) if isinstance(process, AdoptedRank) else None
    return time.clock_gettime(time.CLOCK_BOOTTIME) if since_s is None else since_s


class Launcher:
    """All ranks of this agent. `spawn` must be called from a thread that lives as long as it."""

    def __init__(
        self,
        on_exit: Callable[[RankExited], None],
        warm: WarmStart | None = None,
        pods: PodHosts | None = None,
    ) -> None:
        """`pods`: where ranks run that are launched `in_pod`."""
        self._on_exit = on_exit
        self._warm = warm
        self._pods = pods
        self._ranks: dict[RankKey, RankProcess] = {}
        self._lock = threading.Lock()
        self.paused = False
        self.not_orphans: set[int] = set()

    def spawn(
        self, launch: Launch, logs: LogBatcher, waiting: WarmRank | PodRank | None = None
    ) -> int:
        """Start a rank, warm if that can be; its pid. Raises OSError when the system refuses.

        `waiting`: the rank, where it waits at its gate already.
        """
        if launch.in_pod and self._pods is not None:
            waiting = self._pods.start(launch)
        waiting = waiting or self._start_warm(launch)
        process = waiting or start_cold(launch)
        with self._lock:
            self.not_orphans.add(process.pid)
            token = launch.environment["GANGLINE_RANK_TOKEN"]
            rank = RankProcess(launch.rank, token, process, logs, self)
            self._ranks[launch.rank] = rank
        if waiting is not None:
            waiting.open_gate()
        return rank.pid

    def pids(self) -> dict[RankKey, int]:
        """The process of each rank that runs."""
        with self._lock:
            return {key: rank.pid for key, rank in self._ranks.items()}

    def pause(self) -> None:
        """Watch no rank any more, for ever; the exits of those that ended before are reported."""
        self.paused = True
        with self._lock:
            ranks = list(self._ranks.values())
        for rank in ranks:
            rank.settle()

    def kept(self) -> tuple[KeptRank, ...]:
        """After `pause`: all ranks, to be adopted."""
        with self._lock:
            return tuple(rank.kept() for rank in self._ranks.values())

    def adopt(self, kept: KeptRank, token: str, logs: LogBatcher) -> None:
        """Watch a rank that this process started before the agent reloaded."""
        logs.adopt(kept.log)
        process: AdoptedRank | PodRank
        # Releases before containers of podman did not say which ranks were in pods.
        if self._pods is not None and (kept.in_pod or self._pods.for_all):
            process = self._pods.adopt(kept.rank, kept.pid, kept.stdout, kept.stderr)
        else:
            process = AdoptedRank(kept)
        with self._lock:
            self.not_orphans.add(kept.pid)
            self._ranks[kept.rank] = RankProcess(kept.rank, token, process, logs, self)

    def _start_warm(self, launch: Launch) -> WarmRank | None:
        arguments = warm_arguments(launch.command)
        if self._warm is None or arguments is None or launch.in_image:
            return None
        orders, sandbox = launch.confinement.orders, launch.confinement.sandbox
        request = WarmRequest(arguments, launch.environment, str(launch.folder), orders)
        return self._warm.rank(request, sandbox)

    @contextlib.contextmanager
    def beside(self, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """A process of the agent's own, with pipes; killed at the end, or when the agent dies.

        Any thread that lives as long as the process may call it.
        """
        process = self.keep(
            lambda: subprocess.Popen(
                tied_command(*command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        try:
            with process:
                try:
                    yield process
                finally:
                    process.kill()
        finally:
            self.disown(process.pid)

    def keep(self, start: Callable[[], StartedT]) -> StartedT:
        """A process of the agent's own, which `reap` does not collect until `disown`."""
        with self._lock:
            process = start()
            self.not_orphans.add(process.pid)
        return process

    def disown(self, pid: int) -> None:
        """Collect it like an orphan once it has ended."""
        with self._lock:
            self.not_orphans.discard(pid)

    def terminate(self, rank: RankKey, pid: int | None = None) -> None:
        """SIGTERM to one process of the rank: `pid`, or the one that was started if `pid` is gone.

        Never to the group: a data loader's workers must live while the rank saves.
        """
        with self._lock:
            found = self._ranks.get(rank)
        if found is not None and not (pid and self._terminate_other(pid, rank)):
            found.terminate()

    def _terminate_other(self, pid: int, rank: RankKey) -> bool:
        """Whether this pid is the rank's, and was sent SIGTERM."""
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            if not self.owns(pid, rank):  # looked at while the descriptor keeps the pid's meaning
                return False
            signal.pidfd_send_signal(process, signal.SIGTERM)
        except OSError:
            return False
        finally:
            os.close(process)
        return True

    def kill(self, rank: RankKey) -> None:
        """SIGKILL to the rank's process group; what left it follows when the rank has ended."""
        with self._lock:
            found = self._ranks.get(rank)
        if found is not None:
            found.kill()

    def reap(self) -> None:
        """Collect what ranks left behind and what has ended since."""
        with self._lock:
            reap_orphans(frozenset(self.not_orphans))

    def begun_s(self, rank: RankKey) -> float:
        """When a rank's program began, in seconds since the machine started; 0: it is over."""
        with self._lock:
            found = self._ranks.get(rank)
        return 0.0 if found is None else found.begun_s

    def gang_owns(self, pid: int, gang: GangKey) -> bool:
        """Whether a process is a rank of that gang or was started by one."""
        return any(rank.gang == gang and self.owns(pid, rank) for rank in self.pids())

    def owns(self, pid: int, rank: RankKey) -> bool:
        """Whether a process is that rank or was started by it."""
        with self._lock:
            found = self._ranks.get(rank)
        if found is None:
            return False
        if pid == found.pid:
            return True
        with contextlib.suppress(OSError):
            if os.getsid(pid) == found.pid:
                return True
        return descends(pid, found.pid)

    def finished(self, rank: RankProcess, exited: RankExited) -> None:
        """A rank's watcher has seen its end; what it said last is still taken for its own."""
        self._on_exit(exited)
        with self._lock:
            self._ranks.pop(rank.rank, None)
            self.not_orphans.discard(rank.pid)
