"""An agent whose gangs with images run in containers of a genuine engine, on a real Kafka."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

import pytest

from gangline_schemas.events.scheduling import GangAllocated, ReleaseReason
from gangline_schemas.events.workers import ExitReason, NodeInfo, WorkerExited, WorkerStarted
from gangline_schemas.job_pods import pod_folder
from gangline_worker.agent.runtime.containers import ENGINES
from support.builders.engines import needs_engine
from support.builders.images import layer, member, of_machine, of_python
from support.fakes.oci_registry import OciRegistry
from support.harnesses.node import NodeHarness, alive
from support.waiting import until

GUIDE = Path(__file__).parents[2] / "docs/guides/images.md"
TRAIN = """
import json, os, pathlib, resource, signal, sys, time
folder = pathlib.Path(os.environ["GANGLINE_CHECKPOINT_DIR"])
rank = os.environ["RANK"]
began = folder / f"step-{rank}"
step = int(began.read_text()) if began.exists() else 0
found = {
    "from": step,
    "environment": dict(os.environ),
    "cwd": os.getcwd(),
    "uid": os.getuid(),
    "opt": os.listdir("/opt"),
    "old": os.listdir("/srv/old"),
    "tmp": sorted(os.listdir("/tmp")),
    "shared": sorted(os.listdir("/dev/shm")),
    "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    "locked": resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],
    "files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    "core": resource.getrlimit(resource.RLIMIT_CORE)[1],
    "privileges": [line.split()[1] for line in open("/proc/self/status")
                   if line.startswith(("CapEff", "NoNewPrivs"))],
    "pids": sum(name.isdigit() for name in os.listdir("/proc")),
    "root": sorted(os.listdir("/")),
    "socket": pathlib.Path(os.environ["GANGLINE_AGENT_SOCKET"]).is_socket(),
    "read": pathlib.Path("/opt/data").read_text(),
}
for place in ("/tmp", "/dev/shm", os.environ["HOME"], os.environ["TMPDIR"]):
    pathlib.Path(place, f"of-{os.environ['GANGLINE_ATTEMPT']}-{rank}").write_text("text")
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))
print(json.dumps(found), flush=True)
while True:
    step += 1
    (folder / f"new-{rank}").write_text(str(step))
    (folder / f"new-{rank}").replace(began)
    time.sleep(0.05)
"""
FILES = (
    ("opt/data", b"old"),
    ("opt/hidden", b"of a lower layer"),
    ("srv/old/hidden", b"of a lower layer"),
    ("srv/app/train.py", dedent(TRAIN).encode()),
)
UPPER = ("opt/.wh.hidden", ("opt/data", b"new"), "srv/old/.wh..wh..opq", "srv/old/new")


@pytest.fixture(scope="module")
def hub() -> Iterator[OciRegistry]:
    programs = of_machine("/bin/sh", "/bin/sleep")
    link = member("usr/local/bin/python3", b"2", linkname="python")
    layers = [programs, of_python(), layer(link, *FILES), layer(*UPPER)]
    settings = {
        "Env": ["PATH=/usr/local/bin:/bin", "OF_IMAGE=yes"],
        "WorkingDir": "/srv/app",
        "Entrypoint": ["python3"],
        "Cmd": ["train.py"],
        "User": "1234",
    }
    with OciRegistry() as made:
        made.push("train", layers, **settings)
        made.push("without", [programs], **settings)
        yield made


@dataclass
class Stand:
    """The node and its jobs."""

    harness: NodeHarness
    node: NodeInfo
    hub: OciRegistry
    engine: str
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def start(self, job_id: str = "", attempt: int = 1, **spec: object) -> GangAllocated:
        wanted = {"image": f"{self.hub.host}/tests/small:train", **spec}
        job_id = job_id or f"job-{next(self.numbers)}"
        return self.harness.allocate(self.node, job_id=job_id, attempt=attempt, **wanted)

    def lines(self, gang: GangAllocated, rank: int = 0) -> list[str]:
        return self.harness.lines(rank, gang.attempt, gang.job_id)

    def told(self, gang: GangAllocated, rank: int = 0) -> dict[str, object]:
        self.harness.wait(lambda: bool(self.lines(gang, rank)), "it said nothing")
        lines = self.lines(gang, rank)
        assert lines[0].startswith("{"), "\n".join(lines)
        found: dict[str, object] = json.loads(lines[0])
        return found

    def exits(self, gang: GangAllocated) -> dict[int, WorkerExited]:
        return {
            item.rank: item
            for item in self.harness.of(WorkerExited)
            if (item.job_id, item.attempt) == (gang.job_id, gang.attempt)
        }

    def pids(self, gang: GangAllocated) -> dict[int, int]:
        def found() -> dict[int, int]:
            return {
                item.rank: item.pid
                for item in self.harness.of(WorkerStarted)
                if (item.job_id, item.attempt) == (gang.job_id, gang.attempt)
            }

        self.harness.wait(lambda: len(found()) == gang.world_size)
        return found()

    def containers(self, job_id: str) -> list[str]:
        """The names of a job's containers."""
        return _of_podman(job_id) if self.engine == "podman" else _of_apptainer(job_id)


def _of_apptainer(job_id: str) -> list[str]:
    """By the variable of their first processes, of the first two attempts."""
    attempts = tuple(pod_folder(f"{job_id}-{attempt}") for attempt in (1, 2))
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            variables = dict(item.partition("=")[::2] for item in path.read_text().split("\0"))
            found.add(variables.get("GANGLINE_CONTAINER", ""))
    return sorted(name for name in found if name.endswith(attempts))


def _of_podman(job_id: str) -> list[str]:
    asked = ["podman", "ps", "--all", "--filter", f"label=gangline.dev/job={job_id}"]
    done = subprocess.run([*asked, "--format", "{{.Names}}"], capture_output=True, check=True)
    return done.stdout.decode().split()


@pytest.fixture(scope="module", params=ENGINES)
def stand(
    request: pytest.FixtureRequest, hub: OciRegistry, kafka_bootstrap: str
) -> Iterator[Stand]:
    needs_engine(request.param)
    with TemporaryDirectory(prefix="gl-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        example = re.search(r"```toml\n(\[agent\]\n.*?)```", GUIDE.read_text(), re.DOTALL)
        assert example is not None
        (folder / "node.toml").write_text(example[1].replace("podman", request.param))
        settings = {
            "GANGLINE_ISOLATION": "auto",
            "GANGLINE_CONFIG": str(folder / "node.toml"),
            "GANGLINE_SLOTS": "4",
            "GANGLINE_MEMORY_GB": "16",
        }
        with NodeHarness(folder, kafka_bootstrap, **settings) as harness:
            node = harness.start_agent()
            assert node.runs_images, (folder / "agent.log").read_text()
            yield Stand(harness, node, hub, request.param)
            harness.stop_agent()


def test_a_gang_trains_is_killed_and_continues_in_a_new_container(stand: Stand) -> None:
    gang = stand.start()
    first = [stand.told(gang, rank) for rank in (0, 1)]
    [name] = stand.containers(gang.job_id)
    os.kill(stand.pids(gang)[1], signal.SIGKILL)
    stand.harness.wait(lambda: len(stand.exits(gang)) == 1)
    stand.harness.release(gang, ReleaseReason.RESTARTING)
    until(lambda: stand.containers(gang.job_id) == [], "its container is still there")

    again = stand.start(gang.job_id, attempt=2)
    second = [stand.told(again, rank) for rank in (0, 1)]
    assert stand.containers(gang.job_id) != [name]
    stand.harness.release(again, ReleaseReason.CANCELLED)
    until(lambda: stand.containers(gang.job_id) == [], "its container is still there")
    exits = stand.exits(gang)
    assert (exits[0].signal, exits[1].signal) == (signal.SIGKILL, signal.SIGKILL)
    assert [found["from"] for found in first] == [0, 0]
    for rank, found in enumerate(second):
        assert found.pop("from"), "it continues where it was"
        environment = found.pop("environment")
        assert isinstance(environment, dict)
        assert environment["RANK"] == str(rank)
        assert environment["OF_IMAGE"] == "yes"
        assert not {"AGENT_ONLY_VARIABLE", "container", "TERM", "HOSTNAME"} & set(environment)
        uid = found.pop("uid")
        assert isinstance(uid, int)
        assert uid >= 1_900_000_000 if os.geteuid() == 0 else uid == 0
        assert set(found.pop("tmp")) <= {"of-2-0", "of-2-1"}  # type: ignore[arg-type]
        assert set(found.pop("shared")) <= {"of-2-0", "of-2-1"}  # type: ignore[arg-type]
        assert not {"boot", "home", "mnt"} & set(found.pop("root"))  # type: ignore[arg-type]
        assert found == {
            "cwd": "/srv/app",
            "shm": 4 << 30,
            "locked": resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],
            "files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            "core": 0,
            "privileges": ["0000000000000000", "1"],
            "pids": 3,
            "opt": ["data"],
            "old": ["new"],
            "socket": True,
            "read": "new",
        }


def test_an_image_without_python_is_refused(stand: Stand) -> None:
    gang = stand.start(image=f"{stand.hub.host}/tests/small:without", gpus=[0])
    stand.harness.wait(lambda: bool(stand.exits(gang)))
    exited = stand.exits(gang)[0]
    assert exited.reason is ExitReason.LAUNCH_FAILED
    assert "image refused" in str(exited.message)
    assert "python3, version 3.8 or later" in str(exited.message)
    stand.harness.release(gang, ReleaseReason.FAILED)
    until(lambda: stand.containers(gang.job_id) == [])


def test_a_job_without_an_image_runs_below_the_agent(stand: Stand) -> None:
    gang = stand.start(image=None, gpus=[0], run="echo here; exit 3")
    stand.harness.wait(lambda: bool(stand.exits(gang)))
    assert stand.exits(gang)[0].exit_code == 3
    assert stand.containers(gang.job_id) == []
    stand.harness.release(gang, ReleaseReason.FAILED)


def test_ranks_stay_when_the_agent_restarts_and_go_when_it_is_killed(stand: Stand) -> None:
    gang = stand.start(gpus=[0])
    stand.told(gang)
    pid, agent = stand.pids(gang)[0], stand.harness.agent
    assert agent is not None
    agent.send_signal(signal.SIGHUP)
    log = stand.harness.folder / "agent.log"
    stand.harness.wait(lambda: "agent.restarted" in log.read_text(), "it did not restart")
    os.kill(pid, signal.SIGUSR1)
    stand.harness.wait(lambda: bool(stand.exits(gang)))
    assert stand.exits(gang)[0].exit_code == 9
    stand.harness.release(gang, ReleaseReason.RESTARTING)
    until(lambda: stand.containers(gang.job_id) == [])

    again = stand.start(gang.job_id, attempt=2, gpus=[0])
    stand.told(again)
    pid = stand.pids(again)[0]
    stand.harness.kill_agent()
    until(lambda: not alive(pid), "its guard did not end it")
    assert len(stand.containers(gang.job_id)) == 1
    stand.harness.start_agent()
    assert stand.containers(gang.job_id) == []
