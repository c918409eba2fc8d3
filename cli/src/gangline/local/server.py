"""A server of the embedded platform that can also run alone, under a supervisor of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from gangline.local.artifacts import Progress, default_cache
from gangline.local.process_model import ProcessSpec
from gangline.local.processes import Supervisor


class LocalServer(ABC):
    """One server over one data directory; its ports and its data outlive restarts.

    In the platform it is one more process of the supervisor (`prepare`, then `spec`); alone, in
    tests, it brings a supervisor of its own (`start`, `stop`, or as a context manager). The owner
    of the supervisor's lock calls `prepare`, so that it never runs twice at once over one
    directory.
    """

    name: ClassVar[str]
    """Of its process and its log."""
    process_environment: ClassVar[Mapping[str, str]] = {}
    """Of its process, over the supervisor's own."""
    stop_grace_s: ClassVar[float]

    def __init__(self, data_dir: Path, cache_dir: Path | None = None) -> None:
        self.data_dir = data_dir.resolve()
        self.cache_dir = (cache_dir or default_cache()).resolve()
        self._supervisor: Supervisor | None = None

    @abstractmethod
    def prepare(self, progress: Progress | None = None) -> None:
        """Fetch and verify what it runs on, settle ports and settings; needs no process."""

    @abstractmethod
    def argv(self) -> list[str]:
        """Its command line; call `prepare` first."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it answers."""

    def spec(self, restart: Literal["always", "never"] = "always") -> ProcessSpec:
        """How to run it; call `prepare` first."""
        return ProcessSpec(
            name=self.name,
            argv=self.argv(),
            env=self.process_environment,
            ready=self.is_ready,
            restart=restart,
            stop_grace_s=self.stop_grace_s,
        )

    @property
    def pid(self) -> int | None:
        """The process id of a server that `start` has started, while it runs."""
        if self._supervisor is None:
            return None
        return self._supervisor.status()[0].pid

    def start(self, timeout_s: float = 60.0, progress: Progress | None = None) -> None:
        """Start it and return once it is ready; nothing happens when it is already.

        Call it again after the server has died. Raises SupervisorError with the end of the log
        when it does not come up, or when the directory is in use by another one.
        """
        if self._supervisor is not None and self._supervisor.status()[0].ready:
            return
        self.stop()
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        supervisor = Supervisor(self.data_dir)
        supervisor.claim()
        try:
            self.prepare(progress)
            supervisor.start([self.spec(restart="never")])
            supervisor.wait_ready(timeout_s)
        except BaseException:
            supervisor.stop()
            raise
        self._supervisor = supervisor

    def stop(self) -> None:
        """Stop it and wait for its end; may be repeated."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.stop()

    def __enter__(self) -> Self:
        """As `start`."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """As `stop`."""
        self.stop()
