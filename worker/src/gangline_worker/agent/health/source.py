"""How healthy this node is: one port, `HealthSource`, read in a thread of its own.

`HostHealth` reads the machine: NVML, the data folder's disk, memory, the kernel's clock discipline.
`ScriptedHealth` reads a JSON file instead, so that tests can let a node fall ill. A driver that
hangs keeps its reading thread alone: the reading in the heartbeats gets old, which `read_at` shows,
and the heartbeats, which renew the node's lease, continue. A reading that fails is logged, and the
next one is tried.

Nothing is judged here: whether the node may join is said in fitness.py; what a trend means, and
what follows, is the fault manager's (gangline_faults.core.policy.trends).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import struct
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import psutil
import structlog
from pydantic import ValidationError

from gangline_schemas.events.heartbeats import GpuStatus, NodeHealth
from gangline_worker.agent.host.inventory import gpu_statuses

from .gpus import GpuWatch

log = structlog.get_logger(__name__)

_GIB = 1024**3
_PROBE = b"\0" * 4096
_TIMEX_BYTES = 208
_TIMEX_HEAD = "=I4xqqqqi"  # modes, offset, freq, maxerror, esterror (microseconds), status
_STA_UNSYNC = 0x40
_EDAC = Path("/sys/devices/system/edac/mc")


class HealthSource(Protocol):
    """Where readings come from."""

    def read(self, at: datetime) -> NodeHealth | None:
        """The health at this time; None: it cannot be read now."""


class HostHealth:
    """This machine. `folder` lies on the disk that is watched, and must be the agent's own."""

    def __init__(self, folder: Path, gpus: GpuWatch) -> None:
        self._folder = folder
        self._gpus = gpus
        self._write_errors = 0

    def read(self, at: datetime) -> NodeHealth | None:
        """Writes 4 KiB to the disk, and waits for it."""
        clock_error_s = clock_error()
        write_s = self._probe()
        return NodeHealth(
            read_at=at,
            gpus=self._gpus.read(),
            disk_free_gb=self._free_gb(),
            disk_write_s=write_s,
            disk_write_errors=self._write_errors,
            memory_available_gb=psutil.virtual_memory().available / _GIB,
            memory_uncorrected=_memory_errors(),
            clock_synced=clock_error_s is not None,
            clock_error_s=clock_error_s,
        )

    def _free_gb(self) -> float | None:
        with contextlib.suppress(OSError):
            return psutil.disk_usage(str(self._folder)).free / _GIB
        return None

    def _probe(self) -> float | None:
        """Seconds until the disk has a new block; None: it did not take it."""
        started_s = time.monotonic()
        path = self._folder / "health.probe"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.write(descriptor, _PROBE) != len(_PROBE):
                    raise OSError("short write")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._write_errors += 1
            log.warning("health.disk_not_written", error=str(error))
            return None
        return time.monotonic() - started_s


class ScriptedHealth:
    """A JSON file with the fields of NodeHealth; `read_at` may be left out."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, at: datetime) -> NodeHealth | None:
        """The present reading of the file; None when it is missing or not valid."""
        try:
            found = json.loads(self._path.read_bytes())
            return NodeHealth.model_validate({"read_at": at, **found})
        except (OSError, ValueError, TypeError, ValidationError) as error:
            log.warning("health.script_unreadable", path=str(self._path), error=str(error))
            return None


def health_source(script: Path | None, node_id: str, folder: Path) -> HealthSource:
    """This machine; or a script, which may be a folder with a file for each node."""
    if script is None:
        return HostHealth(folder, GpuWatch())
    return ScriptedHealth(script / f"{node_id}.json" if script.is_dir() else script)


class HealthWatch:
    """The newest reading of a source, and what `gpus` do, taken every `interval_s` until `stop`."""

    def __init__(
        self,
        health_source: Callable[[], HealthSource],
        interval_s: float,
        gpus: tuple[int, ...] = (),
    ) -> None:
        """`gpus` are indexes of NVML."""
        self._open = health_source
        self._gpus = gpus
        self._statuses: tuple[GpuStatus, ...] = ()
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._newest: NodeHealth | None = None
        self._read = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="health", daemon=True)

    @property
    def newest(self) -> NodeHealth | None:
        """May be asked for by any thread."""
        return self._newest

    @property
    def statuses(self) -> tuple[GpuStatus, ...]:
        """The use of the GPUs; () before the first reading. Any thread may ask."""
        return self._statuses

    def was_read(self, within_s: float) -> bool:
        """Wait for the first reading to end; False when it did not, so that `newest` is none."""
        return self._read.wait(within_s)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more. A reading that hangs is left behind."""
        self._ended.set()

    def _watch(self) -> None:
        source = self._open()
        while not self._ended.is_set():
            try:
                self._newest = source.read(datetime.now(UTC)) or self._newest
                self._statuses = gpu_statuses(self._gpus)
            except Exception:
                log.exception("health.not_read")
            self._read.set()
            self._ended.wait(self._interval_s)


def clock_error() -> float | None:
    """How far off the clock may be in seconds, as the kernel's discipline says (adjtimex).

    None: nothing disciplines it, so it is unknown.
    """
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    if ctypes.CDLL(None).adjtimex(timex) < 0:
        return None
    _, _, _, most_us, _, status = struct.unpack_from(_TIMEX_HEAD, timex)
    return None if status & _STA_UNSYNC else float(most_us) / 1e6


def _memory_errors() -> int | None:
    """Uncorrected errors of the main memory since the start; None: the kernel counts none."""
    counts = []
    with contextlib.suppress(OSError, ValueError):
        counts = [int(path.read_text()) for path in sorted(_EDAC.glob("mc*/ue_count"))]
    return sum(counts) if counts else None
