"""The owner of a data directory, and the processes that a killed owner left.

A leftover is known by two marks, and nothing else is ever touched:
- a record `run/NAME.json` whose pid, start time and boot are those of a live process; a pid that
  was given to another process since has another start time;
- the environment variable GANGLINE_SUPERVISED_BY with exactly this directory, which children of
  children inherit; the caller's own process and its ancestors are left out.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from gangline.local.process_model import SupervisorError
from gangline_service.private_file import write_private

MARK = "GANGLINE_SUPERVISED_BY"
_ROUNDS = 5


@dataclass(frozen=True)
class ProcessRecord:
    """A running child, as kept on disk: enough to distinguish it from a later owner of its pid."""

    name: str
    pid: int
    start_ticks: int
    boot_id: str


class DataDirLock:
    """The exclusive right to supervise one data directory; freed by the kernel at death."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "run" / "lock"
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock, or raise SupervisorError that names the holder."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 32).decode("ascii", errors="replace").strip() or "unknown"
            os.close(fd)
            data_dir = self._path.parent.parent
            raise SupervisorError(
                f"data directory {data_dir} is in use by a running platform (pid {holder}); "
                "stop that one first, or choose another data directory"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def write_record(run_dir: Path, name: str, pid: int) -> None:
    """Record a running child; silently nothing when it is gone already."""
    ticks = start_ticks(pid)
    if ticks is None:
        return
    record = ProcessRecord(name, pid, ticks, _boot_id())
    write_private(run_dir / f"{name}.json", json.dumps(asdict(record)).encode())


def remove_record(run_dir: Path, name: str) -> None:
    """Forget a child that has ended."""
    (run_dir / f"{name}.json").unlink(missing_ok=True)


def end_leftovers(data_dir: Path, grace_s: float = 5.0) -> list[ProcessRecord]:
    """End what an earlier owner of the directory left running; return what was ended.

    Recorded children get SIGTERM and, after `grace_s` seconds, SIGKILL with their process group;
    then whatever else carries the mark gets SIGKILL. The caller holds the lock.
    """
    run_dir = data_dir / "run"
    ended = []
    for path in sorted(run_dir.glob("*.json")):
        record = _read_record(path)
        if record is not None and _end_recorded(record, grace_s):
            ended.append(record)
        path.unlink(missing_ok=True)
    return ended + end_strays(data_dir)


def end_strays(data_dir: Path) -> list[ProcessRecord]:
    """Kill every process of this user that carries the directory's mark; return them."""
    ended: list[ProcessRecord] = []
    for _ in range(_ROUNDS):
        strays = _marked(data_dir)
        if not strays:
            break
        for pid in strays:
            ticks = start_ticks(pid)
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                try:
                    # Looked at again through the descriptor: between the scan and its opening
                    # the pid may have gone to another process.
                    if pid in _marked(data_dir, only=pid):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                        _has_ended(fd, 2.0)
                        ended.append(ProcessRecord("stray", pid, ticks or 0, _boot_id()))
                finally:
                    os.close(fd)
    return ended


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when it is gone or dead."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses and may hold anything.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _read_record(path: Path) -> ProcessRecord | None:
    try:
        return ProcessRecord(**json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError, OSError):
        return None  # torn by a crash: the mark finds its process


def _end_recorded(record: ProcessRecord, grace_s: float) -> bool:
    if record.boot_id != _boot_id() or start_ticks(record.pid) != record.start_ticks:
        return False
    try:
        fd = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return False
    try:
        if start_ticks(record.pid) != record.start_ticks:
            return False
        leads_group = os.getpgid(record.pid) == record.pid
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        if not _has_ended(fd, grace_s):
            if leads_group:
                os.killpg(record.pid, signal.SIGKILL)
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            _has_ended(fd, grace_s)
    except ProcessLookupError:
        pass  # it ended meanwhile
    finally:
        os.close(fd)
    return True


def _has_ended(pidfd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def _marked(data_dir: Path, only: int | None = None) -> list[int]:
    mark = f"{MARK}={data_dir.resolve()}".encode()
    spared = _self_and_ancestors()
    found = []
    for path in [Path(f"/proc/{only}")] if only else Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        try:
            if pid in spared or path.stat().st_uid != os.geteuid():
                continue
            # A zombie's environment is empty, so the dead are not found.
            if mark in path.joinpath("environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def _self_and_ancestors() -> set[int]:
    pids = set()
    pid = os.getpid()
    while pid > 0:
        pids.add(pid)
        try:
            text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
        except OSError:
            break
        pid = int(text.rpartition(")")[2].split()[1])
    return pids


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
