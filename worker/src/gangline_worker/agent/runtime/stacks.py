"""Stacks of the ranks of a hanging gang, read from outside while the ranks keep running.

py-spy reads a process's memory (`--nonblocking`), and does not attach to it: this works on one that
SIGSTOP has frozen, and changes none. It names files, lines and functions, never values.

It needs the right to trace: root, CAP_SYS_PTRACE, or the same user with Yama's `ptrace_scope` 0.
Where it is missing, only the state of the process and the system's answer are reported.
"""

from __future__ import annotations

import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import BaseModel, TypeAdapter, ValidationError

from gangline_schemas.secrets import redact
from gangline_worker.agent.decide.inputs import RankStacks
from gangline_worker.agent.decide.keys import RankKey
from gangline_worker.agent.host.sweep import processes

LIMIT_S = 2.0
"""For all ranks together; below decide's STACKS_WAIT_S, so that what was read arrives in time."""
_PROCESSES = 8
_FRAMES = 60
_TEXT_CHARS = 32_000
_MISSING_CHARS = 500
_NO_PYTHON = "it is no Python process"

Start = Callable[[Sequence[str]], AbstractContextManager[subprocess.Popen[bytes]]]
"""Starts a command with pipes; at the end of the context it runs no more."""


class _Frame(BaseModel):
    name: str
    filename: str
    line: int


class _Thread(BaseModel):
    thread_name: str | None = None
    os_thread_id: int | None = None
    owns_gil: bool = False
    frames: list[_Frame]


_THREADS = TypeAdapter(list[_Thread])


@dataclass(frozen=True, slots=True)
class _Seen:
    """One process: its stacks, or why there are none."""

    pid: int
    state: str
    threads: tuple[_Thread, ...] = ()
    missing: str | None = None

    @property
    def heading(self) -> str:
        return f"process {self.pid}, {self.state}"


def take_stacks(
    start: Start, pids: Mapping[RankKey, int], secrets: Iterable[str], limit_s: float = LIMIT_S
) -> tuple[RankStacks, ...]:
    """The stacks of each rank: of its process and of those in its session. Takes `limit_s` s."""
    ends_s = time.monotonic() + limit_s
    known = frozenset(secrets)
    family = _families(frozenset(pids.values()))
    with ExitStack() as running:
        dumps = {
            rank: [_begin(start, one, running) for one in family[pid]] for rank, pid in pids.items()
        }
        return tuple(
            _of_rank(rank, [finish(ends_s) for finish in dumps[rank]], known) for rank in pids
        )


def _begin(start: Start, pid: int, running: ExitStack) -> Callable[[float], _Seen]:
    """Start to read a process; what is returned waits for it."""
    state = _state(pid)
    try:
        dump = running.enter_context(start(_command(pid)))
    except OSError as error:
        missing = f"py-spy cannot be started: {error.strerror}"
        return lambda _: _Seen(pid, state, missing=missing)
    return lambda ends_s: _seen(pid, state, dump, ends_s)


def _families(sessions: frozenset[int]) -> dict[int, list[int]]:
    """The processes of each rank, itself first."""
    found = {session: [session] for session in sessions}
    for process in processes():
        members = found.get(process.session)
        if members is not None and process.pid not in members and len(members) < _PROCESSES:
            members.append(process.pid)
    return found


def _command(pid: int) -> list[str]:
    program = Path(sysconfig.get_path("scripts")) / "py-spy"
    return [str(program), "dump", "--pid", str(pid), "--json", "--nonblocking"]


def _state(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone"


def _seen(pid: int, state: str, dump: subprocess.Popen[bytes], ends_s: float) -> _Seen:
    try:
        out, error = dump.communicate(timeout=max(0.05, ends_s - time.monotonic()))
        threads = _THREADS.validate_json(out) if dump.returncode == 0 else []
    except subprocess.TimeoutExpired:
        return _Seen(pid, state, missing="py-spy took too long")
    except ValidationError:
        return _Seen(pid, state, missing="py-spy's answer cannot be read")
    if dump.returncode != 0:
        return _Seen(pid, state, missing=_complaint(error.decode(errors="replace")))
    threads.sort(key=lambda thread: (thread.thread_name != "MainThread", not thread.owns_gil))
    return _Seen(pid, state, tuple(threads))


def _complaint(error: str) -> str:
    """py-spy's message before its own backtrace, on one line."""
    if "Failed to find python version" in error:
        return _NO_PYTHON
    said = error.partition("Stack backtrace")[0].split()
    return " ".join(said) or "py-spy failed"


def _of_rank(rank: RankKey, seen: Sequence[_Seen], secrets: frozenset[str]) -> RankStacks:
    first = seen[0]
    lines = [line for process in seen if process.threads for line in _lines(process)]
    missing = "; ".join(
        f"{process.heading}: {process.missing}"
        for process in seen
        if process.missing and not (lines and process.missing == _NO_PYTHON)
    )
    text = redact("\n".join(lines), secrets)
    if len(text) > _TEXT_CHARS:
        text = text[:_TEXT_CHARS].rpartition("\n")[0] + "\n..."
    return RankStacks(
        rank, first.pid, first.state, text, redact(missing, secrets)[:_MISSING_CHARS] or None
    )


def _lines(process: _Seen) -> Iterable[str]:
    yield process.heading
    for thread in process.threads:
        name = thread.thread_name or f"{thread.os_thread_id}"
        yield f"thread {name}{', holds the GIL' if thread.owns_gil else ''}"
        for frame in thread.frames[:_FRAMES]:
            yield f"  {frame.name} ({frame.filename}:{frame.line})"
        if len(thread.frames) > _FRAMES:
            yield f"  ... {len(thread.frames) - _FRAMES} more"
