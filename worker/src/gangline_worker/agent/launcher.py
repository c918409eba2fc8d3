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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .isolation_groups import base_group
from .isolation_rooms import UNCONFINED, Confinement, born_in
from .log_lines import LogBatcher, Stream
from .model import RankExited, RankKey
from .rank_exec import tied_command
from .sweep import kill_rank, reap_orphans
from .warm_process import WarmRank, WarmStart, warm_arguments

_PR_SET_CHILD_SUBREAPER = 36
_FLUSH_S = 0.2
_DRAIN_S = 3.0
_READ_BYTES = 65_536
_OUT_OF_MEMORY = ("OutOfMemoryError", "CUDA out of memory", "MemoryError")


def become_subreaper() -> None:
    """Inherit what ranks leave behind, so that it can be found and collected."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _oom_kills() -> int:
    """How many processes the kernel has killed for memory in this agent's control group."""
    with contextlib.suppress(OSError, ValueError):
        for entry in (base_group() / "memory.events").read_text().splitlines():
            name, count = entry.split()
            if name == "oom_kill":
                return int(count)
    return 0


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one rank."""

    rank: RankKey
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    confinement: Confinement = UNCONFINED


def start_cold(launch: Launch) -> subprocess.Popen[bytes]:
    """Start its command in a fresh process. It dies with the calling thread. Raises OSError."""
    room = launch.confinement.room
    with born_in(room):
        return subprocess.Popen(
            tied_command(*launch.command, orders=launch.confinement.orders, room=room),
            cwd=launch.folder,
            env=dict(launch.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            umask=0o077,
            pass_fds=() if room is None else (room,),
        )


class RankProcess:
    """One running rank. Made by `Launcher.spawn`."""

    def __init__(
        self,
        launch: Launch,
        process: subprocess.Popen[bytes] | WarmRank,
        logs: LogBatcher,
        finish: Callable[[RankProcess, RankExited], None],
    ) -> None:
        self.launch = launch
        self.pid = process.pid
        self._process = process
        self._logs = logs
        self._finish = finish
        self._ended = False
        self._status = 0
        self._lock = threading.Lock()
        self._oom_kills = _oom_kills()
        name = f"rank-{launch.rank.rank}"
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._thread.start()

    def signal(self, number: int) -> None:
        """Send a signal to the rank's process group, unless it has ended."""
        with self._lock:
            if not self._ended:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, number)

    def _watch(self) -> None:
        self._pass_on_until_end()
        with self._lock:
            self._ended = True
            self._status = self._process.wait()
        kill_rank(self.pid, self.launch.environment["GANGLINE_RANK_TOKEN"])
        self._drain()
        self._logs.feed("stdout", b"")
        self._logs.feed("stderr", b"")
        self._logs.flush()
        self._finish(self, self._exit())

    def _streams(self) -> dict[Stream, IO[bytes]]:
        stdout, stderr = self._process.stdout, self._process.stderr
        if stdout is None or stderr is None:
            raise RuntimeError("a rank is started with pipes")
        return {"stdout": stdout, "stderr": stderr}

    def _pass_on_until_end(self) -> None:
        """Pass on lines until the process has ended; it is not collected yet."""
        ended = os.pidfd_open(self.pid)
        due = time.monotonic() + _FLUSH_S
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ, None)
            for stream, pipe in self._streams().items():
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, stream)
            while True:
                ready = selector.select(max(0.0, due - time.monotonic()))
                if any(key.data is None for key, _ in ready):
                    os.close(ended)
                    return
                for key, _ in ready:
                    if not self._read(key.data, key.fd):
                        selector.unregister(key.fileobj)
                if time.monotonic() >= due:
                    self._logs.flush()
                    due = time.monotonic() + _FLUSH_S

    def _read(self, stream: Stream, descriptor: int) -> bool:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        if data:
            self._logs.feed(stream, data)
        return bool(data)

    def _drain(self) -> None:
        """Read both pipes to their end; give up on one that something still holds."""
        deadline = time.monotonic() + _DRAIN_S
        with selectors.DefaultSelector() as selector:
            for stream, pipe in self._streams().items():
                selector.register(pipe, selectors.EVENT_READ, stream)
            while selector.get_map() and time.monotonic() < deadline:
                for key, _ in selector.select(0.1):
                    if not self._read(key.data, key.fd):
                        selector.unregister(key.fileobj)
        for pipe in self._streams().values():
            pipe.close()

    def _exit(self) -> RankExited:
        status = self._status
        words = self._logs.last_words
        memory = any(name in words for name in _OUT_OF_MEMORY)
        if status >= 0:
            return RankExited(self.launch.rank, code=status, out_of_memory=memory, last_words=words)
        killed = -status == signal.SIGKILL and _oom_kills() > self._oom_kills
        return RankExited(
            self.launch.rank, signal=-status, out_of_memory=memory or killed, last_words=words
        )


class Launcher:
    """All ranks of this agent. `spawn` must be called from a thread that lives as long as it."""

    def __init__(
        self, on_exit: Callable[[RankExited], None], warm: WarmStart | None = None
    ) -> None:
        self._on_exit = on_exit
        self._warm = warm
        self._ranks: dict[RankKey, RankProcess] = {}
        self._lock = threading.Lock()
        self.not_orphans: set[int] = set()

    def spawn(self, launch: Launch, logs: LogBatcher) -> int:
        """Start a rank, warm if that can be; its pid. Raises OSError when the system refuses."""
        waiting = self._start_warm(launch)
        process = waiting or start_cold(launch)
        with self._lock:
            self.not_orphans.add(process.pid)
            rank = RankProcess(launch, process, logs, self._finish)
            self._ranks[launch.rank] = rank
        if waiting is not None:
            waiting.open_gate()
        return rank.pid

    def _start_warm(self, launch: Launch) -> WarmRank | None:
        arguments = warm_arguments(launch.command)
        if self._warm is None or arguments is None:
            return None
        return self._warm.rank(arguments, launch.environment, launch.folder, launch.confinement)

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
            self.let_go(process.pid)

    def keep(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """A process of the agent's own, which `reap` does not collect until `let_go`."""
        with self._lock:
            process = start()
            self.not_orphans.add(process.pid)
        return process

    def let_go(self, pid: int) -> None:
        """Collect it like an orphan once it has ended."""
        with self._lock:
            self.not_orphans.discard(pid)

    def terminate(self, rank: RankKey) -> None:
        """SIGTERM to the rank's process group."""
        with self._lock:
            found = self._ranks.get(rank)
        if found is not None:
            found.signal(signal.SIGTERM)

    def kill(self, rank: RankKey) -> None:
        """SIGKILL to the rank's process group; what left it follows when the rank has ended."""
        with self._lock:
            found = self._ranks.get(rank)
        if found is not None:
            found.signal(signal.SIGKILL)

    def reap(self) -> None:
        """Collect what ranks left behind and what has ended since."""
        with self._lock:
            reap_orphans(frozenset(self.not_orphans))

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
        return _descends(pid, found.pid)

    def _finish(self, rank: RankProcess, exited: RankExited) -> None:
        with self._lock:
            self._ranks.pop(rank.launch.rank, None)
            self.not_orphans.discard(rank.pid)
        self._on_exit(exited)


def _descends(pid: int, ancestor: int) -> bool:
    for _ in range(64):
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return False
        pid = int(stat[stat.rindex(b")") + 2 :].split()[1])
        if pid == ancestor:
            return True
        if pid <= 1:
            return False
    return False
