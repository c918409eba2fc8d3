"""Gangs in containers of an engine, where the agent cannot make the root of an image itself.

1. `open` starts a container with the gang's image and its folders. Its first process is `pod_host`.
2. The process connects to the agent (`pod_hosts`), which starts ranks in it.
3. `close` ends the container with all that is in it. The next attempt gets a new one.

A container ends by itself with the agent's lease, so none stays behind a dead agent for long.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import structlog

from gangline_schemas.job_pods import POD_SOCKET
from gangline_worker import pod_host
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.isolation.files import Owner

from .apptainer import Apptainer
from .engine import Container, Engine, last_words
from .pod_hosts import PodHosts, PodWaits
from .pod_link import PodMissing
from .podman import Podman
from .spares import SandboxPlan

log = structlog.get_logger(__name__)

_START_S = 60.0
_HOST = "pod_host.py"
_KEPT_BYTES = 4096
ENGINES: dict[str, type[Engine]] = {each.program: each for each in (Podman, Apptainer)}
"""By the name that the setting has."""

Keep = Callable[[Callable[[], subprocess.Popen[bytes]]], subprocess.Popen[bytes]]
"""Calls the given function, so that what it starts is not collected as an orphan."""


class PythonMissing(PodMissing):
    """The image has no Python that can start ranks."""


class Containers:
    """The containers of this node's gangs. `open` and `close` may be called by many threads."""

    def __init__(self, engine: Engine, sockets: Path, lease_s: float, processes: int) -> None:
        self._engine, self._lease_s, self._processes = engine, lease_s, processes
        self._prefix = _prefix_of(sockets)
        self.hosts = PodHosts(
            sockets, PodWaits(_START_S, _START_S), _not_started, _of_attempt, for_all=False
        )
        self._without_python: set[GangKey] = set()
        self._running: dict[GangKey, tuple[threading.Thread, subprocess.Popen[bytes]]] = {}

    @property
    def engine(self) -> str:
        """Its name, as the setting has it."""
        return self._engine.program

    def lacking(self, owner: Owner | None) -> str | None:
        """The reason why no container can run here; None: one ran, as this user."""
        lacking = self._engine.lacking(owner)
        event = f"agent.{self.engine}"
        log.info(event, limits=self._engine.limits, lacks=lacking)
        return lacking

    def open(
        self,
        gang: GangKey,
        environment: Mapping[str, str],
        plan: SandboxPlan,
        show: Sequence[Path],
        keep: Keep,
        disown: Callable[[int], None],
    ) -> None:
        """Start the gang's container, with the image's environment, and wait for its first process.

        Raises PythonMissing, PodMissing and OSError.
        """
        folder = self.hosts.expect(gang, plan.owner)
        shutil.copyfile(str(pod_host.__file__), folder / _HOST)
        (folder / _HOST).chmod(0o644)
        container = Container(
            self._name(gang),
            (f"gangline.dev/job={gang.job_id}", f"gangline.dev/attempt={gang.attempt}"),
            plan.image,
            dict(environment),
            (folder, *show),
            plan.limits,
            plan.rank_bytes,
            self._processes,
            plan.owner,
        )
        program = ["python3", "-S", str(folder / _HOST), "room"]
        program += [str(folder / POD_SOCKET), f"{self._lease_s:g}"]
        command = self._engine.command(container, program)
        process = keep(
            lambda: subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=self._engine.variables(container),
            )
        )
        self._without_python.discard(gang)
        watch = threading.Thread(
            target=self._watch, args=(gang, process, disown), name="container", daemon=True
        )
        self._running[gang] = (watch, process)
        watch.start()
        try:
            self.hosts.wait(gang, [])
        except PodMissing as error:
            if gang in self._without_python:
                needs = "python3, version 3.8 or later, starts its ranks in a container of"
                raise PythonMissing(f"{needs} {self._engine.title}; {error}") from None
            raise

    def close(self, gang: GangKey) -> None:
        """End the gang's container, in a thread of its own."""
        self.hosts.leave(gang, final=True)
        running = self._running.pop(gang, None)
        ending = threading.Thread(target=self._end, args=(gang, running), name="container-end")
        ending.start()

    def _end(
        self, gang: GangKey, running: tuple[threading.Thread, subprocess.Popen[bytes]] | None
    ) -> None:
        watch, process = running or (None, None)
        try:
            self._engine.end(self._name(gang), process)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("container.not_ended", job=gang.job_id, error=str(error))
        if watch is not None:
            watch.join()
        self._without_python.discard(gang)

    def _watch(
        self, gang: GangKey, process: subprocess.Popen[bytes], disown: Callable[[int], None]
    ) -> None:
        with process:
            said = _tail(process.stderr)
        code = process.returncode
        disown(process.pid)
        words = last_words(said)
        if self._engine.lacks_python(code, words):
            self._without_python.add(gang)
        log.info("container.ended", job=gang.job_id, attempt=gang.attempt, code=code, said=words)
        self.hosts.refuse(gang, f"its container ended with {code}{': ' if words else ''}{words}")

    def _name(self, gang: GangKey) -> str:
        return f"{self._prefix}{self.hosts.folder(_of_attempt(gang)).name}"


def end_all(engine: Engine, sockets: Path) -> None:
    """End the containers that an earlier agent with this folder of sockets left, if it can be."""
    try:
        engine.end_all(_prefix_of(sockets))
    except (OSError, subprocess.TimeoutExpired) as error:  # they end with that agent's lease
        log.warning("container.not_ended", error=str(error))


def _prefix_of(sockets: Path) -> str:
    return f"gangline-{hashlib.sha256(str(sockets).encode()).hexdigest()[:8]}-"


def _of_attempt(gang: GangKey) -> str:
    return f"{gang.job_id}-{gang.attempt}"


def _not_started(gang: GangKey, _: bool) -> str:  # noqa: FBT001 -- as PodHosts calls it
    name = f"{gang.job_id}, attempt {gang.attempt}"
    return f"the container of {name} did not start within {_START_S:g} s"


def _tail(pipe: IO[bytes] | None) -> bytes:
    """The end of all that comes, of which little is kept: ranks may write there, too."""
    kept = b""
    while pipe is not None and (data := pipe.read1(_KEPT_BYTES)):  # type: ignore[attr-defined]
        kept = (kept + data)[-_KEPT_BYTES:]
    return kept
