"""One run, as a script sees it."""

from __future__ import annotations

import posixpath
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Final, Self, SupportsIndex

from gangline.tracking.config import Config, Summary
from gangline.tracking.live import Live, Nowhere, Progress, Sink
from gangline.tracking.values import Point, points_of, step_of, tags_of

FINISHED, FAILED, KILLED = "FINISHED", "FAILED", "KILLED"
FINISH_S: Final = 15.0


class Run:
    """A run that is being logged; `gangline.init` makes it. All methods may be called by threads.

    Use it as a context manager, or call `finish`. A run that is open when the interpreter ends is
    finished then.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        name: str | None,
        project: str,
        fixed: Mapping[str, Any],
        mode: str,
        run_id: str | None = None,
    ) -> None:
        """`run_id`: if it is known already. `fixed`: see `Config`."""
        self._sink, self._run_id = sink, run_id
        self.name, self.project, self.mode = name, project, mode
        self._lock = threading.RLock()
        self._step = -1
        self._known: set[str] = set()
        self._finished = False
        self.config = Config(fixed, lambda params: self._record("params", params))
        self.summary = Summary(self._put_now, lambda tags: self._record("tags", tags))

    @property
    def id(self) -> str | None:
        """The run's id on the server; None while that is not known."""
        if self._run_id is None and isinstance(self._sink, Live):
            self._run_id = self._sink.uploader.run_id
        return self._run_id

    @property
    def url(self) -> str | None:
        """The run's page; None while the server has not answered."""
        return self._sink.uploader.url if isinstance(self._sink, Live) else None

    @property
    def folder(self) -> Path | None:
        """Where the run is kept on disk until it is uploaded."""
        return getattr(getattr(self._sink, "spool", None), "folder", None)

    @property
    def step(self) -> int:
        """The last step that was logged; -1 before the first."""
        return self._step

    @property
    def progress(self) -> Progress:
        """How many points wait in memory, were uploaded, and were left out."""
        return self._sink.progress

    def log(self, metrics: Mapping[str, Any], step: SupportsIndex | None = None) -> None:
        """Log one step's metrics. Takes microseconds, and never waits for disk or network.

        `step` is by default one more than the last one. It may go backwards: all points are kept.
        Nested mappings are logged as `outer/inner`. NaN and infinities are kept. A value on a GPU
        is copied there, and read later. Raises TypeError for a value that is not one number and
        ValueError for a name or a step that cannot be; the message names the key. RuntimeError
        after `finish`.
        """
        time_ms = time.time_ns() // 1_000_000
        points = points_of(metrics, self._known)
        given = None if step is None else step_of(step)
        with self._lock:
            self._check_open()
            self._step = self._step + 1 if given is None else given
            self._sink.put(points, self._step, time_ms)
            self.summary.saw(points)

    def _put_now(self, points: Sequence[Point]) -> None:
        with self._lock:
            self._check_open()
            self._sink.put(points, max(0, self._step), time.time_ns() // 1_000_000)

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set tags; a later value replaces an earlier one. Raises TypeError or ValueError."""
        self._record("tags", tags_of(tags))

    def log_artifact(self, path: str | Path, name: str | None = None) -> None:
        """Keep a file or a folder with the run, as `name` (by default its own name).

        It is copied now and uploaded in the background, so the script may change or remove it.
        Raises OSError if it cannot be read or copied, ValueError for a name that leaves the run.
        """
        source = Path(path)
        target = name if name is not None else source.resolve().name
        if posixpath.normpath(target) != target or target.startswith(("/", "..")) or target == ".":
            raise ValueError(f"name: {target!r} must be a relative path such as models/best.pt")
        if not source.exists():
            raise FileNotFoundError(f"{source}: no such file")
        for file, inner in _files(source, target):
            with self._lock:
                self._check_open()
                self._sink.keep_file(file, inner)

    def finish(self, exit_code: int = 0, *, timeout_s: float = FINISH_S) -> None:
        """End the run: FINISHED, or FAILED if `exit_code` is not 0. A second call does nothing.

        Waits for the upload, but not longer than `timeout_s` without progress.
        """
        self.end(FAILED if exit_code else FINISHED, timeout_s)

    def end(self, status: str, timeout_s: float = FINISH_S) -> None:
        """End the run with a status of MLflow."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
        self._sink.close(status, timeout_s)

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self._finished

    def become_child(self) -> None:
        """In a forked child: the threads and the lock are the parent's; log nothing here."""
        self._run_id = self.id
        self._lock = threading.RLock()
        said: list[bool] = []

        def say() -> None:
            if not said:
                said.append(True)
                note(
                    "this process was forked from the run's: what it logs is left out; "
                    "call gangline.init(run_id=...) here to log to the same run"
                )

        self._sink = Nowhere(say)

    def _record(self, kind: str, values: Mapping[str, str]) -> None:
        with self._lock:
            self._check_open()
            self._sink.record([kind, dict(values)])

    def _check_open(self) -> None:
        if self._finished:
            raise RuntimeError("the run is finished; start another one with gangline.init()")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end(status_of(error))

    def __repr__(self) -> str:
        return f"<Run {self.name or self.id or self.mode} of {self.project}>"


def status_of(error: BaseException | None) -> str:
    """How a run ends by an exception."""
    if error is None or (isinstance(error, SystemExit) and error.code in {None, 0}):
        return FINISHED
    return KILLED if isinstance(error, KeyboardInterrupt) else FAILED


def note(text: str) -> None:
    """Tell the user, in one line of stderr."""
    sys.stderr.write(f"gangline: {text}\n")


def _files(source: Path, name: str) -> Iterator[tuple[Path, str]]:
    if not source.is_dir():
        yield source, name
        return
    for file in sorted(source.rglob("*")):
        if file.is_file():
            yield file, str(PurePosixPath(name, file.relative_to(source).as_posix()))
