"""A node for hostile ranks: its jobs of one rank each, what they tell, and a victim beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

import pytest

from gangline_schemas.events.logs import WorkerLog
from gangline_schemas.events.scheduling import GangAllocated, ReleaseReason
from gangline_schemas.events.workers import ExitReason, NodeInfo, WorkerExited, WorkerStarted
from gangline_schemas.isolation import Isolation
from node_scene import NodeScene, alive

SLOTS = 6
PROCESSES = 300
METADATA = ("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200")
OURS, THEIRS = "nlp", "cv"
SECRET = "a word of the other team"

HOSTILE = """
import json, os, sys
victim = json.loads(os.environ.get("VICTIM", "{}"))
def attempt(what, *given):
    try:
        return repr(what(*given))
    except (OSError, MemoryError) as error:
        return type(error).__name__
def tell(**found):
    print(json.dumps(found), flush=True)
"""

VICTIM = f"""
import json, os, pathlib, signal, socket, time
signal.signal(signal.SIGTERM, lambda *_: print("somebody signalled", flush=True))
named = [os.environ[name] for name in ("HOME", "GANGLINE_CHECKPOINT_DIR", "GANGLINE_DATA_CACHE")]
folders = [*map(pathlib.Path, named), pathlib.Path.cwd()]
for folder in folders:
    (folder / "own.txt").write_text({SECRET!r})
print(json.dumps({{
    "files": [str(folder / "own.txt") for folder in folders],
    "socket": os.environ["GANGLINE_AGENT_SOCKET"],
    "port": int(os.environ["MASTER_PORT"]),
}}), flush=True)
while True:
    time.sleep(0.1)
"""


@dataclass
class Stand:
    """The node, its agent, and jobs of one rank each."""

    scene: NodeScene
    node: NodeInfo
    numbers: Iterator[int] = field(default_factory=count)

    def needs(self, level: Isolation) -> None:
        if self.node.isolation.strength < level.strength:
            pytest.skip(f"this machine isolates by {self.node.isolation}, not by {level}")

    def begin(self, script: str, team: str = OURS, slot: int = 1, **spec: object) -> GangAllocated:
        return self.scene.allocate(
            self.node,
            job_id=f"job-{next(self.numbers)}",
            team=team,
            gpus=[slot],
            command=["python", "-c", HOSTILE + dedent(script)],
            **spec,
        )

    def lines(self, job_id: str) -> list[str]:
        batches = {
            (item.attempt, item.first_line): item.lines
            for item in self.scene.of(WorkerLog)
            if item.job_id == job_id and item.rank == 0
        }
        return [line.text for first in sorted(batches) for line in batches[first]]

    def pid(self, job_id: str) -> int:
        """As the node sees it."""

        def found() -> list[int]:
            return [item.pid for item in self.scene.of(WorkerStarted) if item.job_id == job_id]

        self.scene.wait(lambda: bool(found()), f"{job_id} never started")
        return found()[0]

    def exit(self, job_id: str) -> WorkerExited:
        def found() -> list[WorkerExited]:
            return [item for item in self.scene.of(WorkerExited) if item.job_id == job_id]

        self.scene.wait(lambda: bool(found()), f"{job_id} never ended")
        return found()[0]

    def told(self, script: str, victim: Victim | None = None, **spec: object) -> dict[str, object]:
        """What a rank tells of its attempts; it must have come to its end."""
        known = {} if victim is None else {"VICTIM": json.dumps(victim.known)}
        gang = self.begin(script, env=known, **spec)
        exited = self.exit(gang.job_id)
        assert exited.reason is ExitReason.FINISHED, (exited, self.lines(gang.job_id))
        self.scene.wait(lambda: any(line[:1] == "{" for line in self.lines(gang.job_id)))
        self.scene.release(gang, ReleaseReason.SUCCEEDED)
        told = next(line for line in self.lines(gang.job_id) if line[:1] == "{")
        found: dict[str, object] = json.loads(told)
        return found


@dataclass(frozen=True)
class Victim:
    """A running rank of another team: its pid as the node sees it, and what it told of itself."""

    gang: GangAllocated
    pid: int
    known: dict[str, object]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Other users may pass through it, as not through pytest's own or a closed TMPDIR."""
    with TemporaryDirectory(
        prefix="gangline-isolation-", dir="/var/tmp", ignore_cleanup_errors=True
    ) as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def stand(folder: Path, kafka_bootstrap: str) -> Iterator[Stand]:
    with NodeScene(
        folder,
        kafka_bootstrap,
        GANGLINE_ISOLATION=os.environ.get("GANGLINE_TEST_ISOLATION", "auto"),
        GANGLINE_ISOLATION_PROCESSES=str(PROCESSES),
        GANGLINE_SLOTS=str(SLOTS),
    ) as scene:
        yield Stand(scene, scene.start_agent(warm="fork"))


@pytest.fixture(scope="module")
def victim(stand: Stand) -> Iterator[Victim]:
    stand.needs(Isolation.USER)
    gang = stand.begin(VICTIM, team=THEIRS, slot=0, env={"VICTIMS_WORD": SECRET})
    stand.scene.wait(lambda: bool(stand.lines(gang.job_id)))
    pid = stand.pid(gang.job_id)
    known = json.loads(stand.lines(gang.job_id)[0])
    yield Victim(gang, pid, known | {"pid": pid})
    assert alive(pid), "one of the attacks killed it"
    assert len(stand.lines(gang.job_id)) == 1, "one of the attacks reached it"
