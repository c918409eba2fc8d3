"""The next attempt in an image starts warm, in a sandbox that was made for it in advance.

On the node of `test_isolation_images.py`: see `support.fixtures.isolation`.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from gangline_schemas.events.scheduling import GangAllocated, ReleaseReason
from gangline_schemas.events.workers import WorkerStarted
from support.builders.images import layer, of_machine, of_python
from support.fakes.oci_registry import OciRegistry
from support.fixtures.isolation import OURS, Stand

TRAIN = """
import json, os, pathlib, sys, time
folders = [os.environ[name] for name in ("HOME", "TMPDIR", "GANGLINE_CHECKPOINT_DIR")]
for folder in (*folders, "/tmp", "/dev/shm"):
    pathlib.Path(folder, f"of-{os.environ['RANK']}").write_text("text")
print(json.dumps({
    "attempt": os.environ["GANGLINE_ATTEMPT"],
    "warm": "torch" in sys.modules,
    "uid": os.getuid(),
    "cwd": os.getcwd(),
    "secret": os.environ["COLOUR"],
    "socket": pathlib.Path(os.environ["GANGLINE_AGENT_SOCKET"]).is_socket(),
    "pids": sum(name.isdigit() for name in os.listdir("/proc")),
    "tmp": sorted(name for name in os.listdir("/tmp") if name.startswith("of-")),
    "root": sorted(name for name in os.listdir("/") if name in ("srv", "root", "home", "boot")),
}), flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[OciRegistry]:
    """An image with this Python and a small `torch`."""
    with OciRegistry() as made:
        files = (
            ("packages/torch/__init__.py", b"def set_num_threads(number): pass"),
            ("srv/app/train.py", dedent(TRAIN).encode()),
        )
        made.push(
            "python",
            [of_machine("/bin/sh"), of_python(), layer(*files)],
            Env=["PATH=/usr/local/bin:/bin", "PYTHONPATH=/packages"],
            WorkingDir="/srv/app",
        )
        yield made


class Job:
    """A job of one rank in the image, and the standbys that were ready since it began."""

    def __init__(self, stand: Stand, hub: OciRegistry) -> None:
        if not stand.node.runs_images:
            pytest.skip("this machine's agent cannot run images")
        self.stand, self.hub = stand, hub
        self.log = stand.harness.folder / "agent.log"
        self.job_id = f"job-{next(stand.numbers)}"
        self.before = len(self.ready())

    def ready(self) -> list[int]:
        lines = [
            line for line in self.log.read_text().splitlines() if "image_standby.ready" in line
        ]
        return [json.loads(line)["pid"] for line in lines]

    def start(self, attempt: int) -> GangAllocated:
        return self.stand.harness.allocate(
            self.stand.node, job_id=self.job_id, team=OURS, attempt=attempt, gpus=[1],
            image=f"{self.hub.host}/tests/python:python", command=["python", "train.py"],
            env={"COLOUR": "green"},
        )  # fmt: skip

    def told(self, count: int) -> dict[str, object]:
        self.stand.harness.wait(lambda: len(self.stand.lines(self.job_id)) == count)
        found: dict[str, object] = json.loads(self.stand.lines(self.job_id)[-1])
        return found

    def standby(self) -> int:
        self.stand.harness.wait(lambda: len(self.ready()) > self.before, "no standby was ready")
        return self.ready()[-1]


@pytest.fixture
def job(stand: Stand, hub: OciRegistry) -> Job:
    return Job(stand, hub)


def test_the_next_attempt_starts_warm_in_a_sandbox_of_its_own(job: Job) -> None:
    stand = job.stand
    gang = job.start(1)
    first = job.told(1)
    standby = job.standby()
    os.kill(stand.pid(job.job_id), signal.SIGKILL)
    stand.exit(job.job_id)
    stand.harness.release(gang, ReleaseReason.RESTARTING)
    again = job.start(2)
    second = job.told(2)
    pids = [item.pid for item in stand.harness.of(WorkerStarted) if item.job_id == job.job_id]
    assert pids[1] == standby
    assert (first["warm"], second["warm"]) == (False, True)
    assert {**first, "attempt": "2", "warm": True} == second
    assert second["pids"] == 2, "the first process of its sandbox, and itself"
    assert second["tmp"] == ["of-0"]
    stand.harness.release(again, ReleaseReason.CANCELLED)
    stand.harness.wait(lambda: len(stand.harness.exits(2)) >= 2)


def test_a_standby_has_no_rights_and_sees_nothing_of_a_gang(job: Job) -> None:
    stand = job.stand
    gang = job.start(1)
    uid = job.told(1)["uid"]
    standby = Path(f"/proc/{job.standby()}")
    status = dict(line.split(":\t", 1) for line in (standby / "status").read_text().splitlines())
    assert set(status["Uid"].split()) == {str(uid)}
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    for kind in ("pid", "mnt", "ipc"):
        other = Path(f"/proc/{stand.pid(gang.job_id)}/ns/{kind}")
        assert (standby / "ns" / kind).readlink() not in {
            Path(f"/proc/self/ns/{kind}").readlink(), other.readlink(),
        }  # fmt: skip
    root = standby / "root"
    assert (root / "srv/app/train.py").exists()
    assert not (root / str(stand.harness.folder).lstrip("/")).exists()
    shown = (standby / "environ").read_bytes()
    assert b"COLOUR" not in shown
    stand.harness.release(gang, ReleaseReason.CANCELLED)
    stand.harness.wait(lambda: not standby.exists(), "it outlived its job")
