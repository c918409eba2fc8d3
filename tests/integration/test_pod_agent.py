"""An agent whose ranks run in pods, on a real Kafka; a process stands for the job's pod."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_schemas.events.scheduling import ReleaseReason
from gangline_schemas.events.workers import ExitReason, WorkerExited, WorkerStarted
from gangline_schemas.isolation import Isolation
from gangline_schemas.job_pods import pod_folder
from support.harnesses.node import NodeHarness, alive, python
from support.harnesses.pod_process import PodProcess
from support.waiting import until


@pytest.fixture
def data() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gl-", ignore_cleanup_errors=True) as name:
        yield Path(name) / "n"


@pytest.fixture
def harness(tmp_path: Path, kafka_bootstrap: str, data: Path) -> Iterator[NodeHarness]:
    settings = {
        "GANGLINE_DATA_DIR": str(data),
        "GANGLINE_RANKS_IN_PODS": "true",
        "GANGLINE_POD_BIND_S": "60",
    }
    with NodeHarness(tmp_path, kafka_bootstrap, **settings) as made:
        yield made


def test_attempts_of_a_gang_run_in_its_pod_and_survive_a_restart_of_the_agent(
    harness: NodeHarness, data: Path
) -> None:
    node = harness.start_agent()
    assert (node.runs_images, node.isolation) == (True, Isolation.PROCESS)
    first = harness.allocate(
        node,
        image="example.test/train:1",
        command=python("""
            import json, os, pathlib, sys, time
            from gangline_worker import flush, report
            report({"loss": 0.5}, 1)
            flush()
            os.mkdir(os.environ["TMPDIR"] + "/made-" + os.environ["RANK"])
            print(json.dumps(dict(os.environ)), flush=True)
            go = pathlib.Path(os.environ["GANGLINE_CHECKPOINT_DIR"], "go")
            while not go.exists():
                time.sleep(0.05)
            sys.exit(4)
        """),
    )
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    own = {"PATH": path, "OF_THE_IMAGE": "1", "KUBERNETES_PORT": "tcp://10.0.0.1"}
    with PodProcess(data, "job-1", own) as pod:
        harness.wait(lambda: all(harness.lines(rank) for rank in (0, 1)))
        assert harness.lines(1)[0].startswith("{"), harness.lines(1)
        environment = json.loads(harness.lines(1)[0])
        assert environment["OF_THE_IMAGE"] == "1"
        assert "KUBERNETES_PORT" not in environment
        assert environment["RANK"] == "1"
        assert environment["GANGLINE_AGENT_SOCKET"].startswith(
            str(data / "sockets" / pod_folder("job-1"))
        )
        assert harness.agent is not None
        os.kill(harness.agent.pid, signal.SIGHUP)
        log = harness.folder / "agent.log"
        harness.wait(lambda: "agent.restarted" in log.read_text(), "it did not restart")
        (data / "checkpoints" / "job-1" / "go").touch()
        exits = harness.exits(2)
        assert {(item.exit_code, item.reason) for item in exits.values()} == {
            (4, ExitReason.FAILED)
        }
        harness.release(first, ReleaseReason.RESTARTING)

        harness.allocate(node, attempt=2, run="echo again; exit 0")
        assert harness.exits(4)[2, 1].reason is ExitReason.FINISHED
        assert pod.process.poll() is None
        parents = {Path(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children").read_text()}
        assert parents == {""}, "a rank was left in the pod"


def test_ranks_in_pods_end_with_their_agent_and_a_new_one_takes_the_pod(
    harness: NodeHarness, data: Path
) -> None:
    node = harness.start_agent()
    first = harness.allocate(node, run="setsid sleep 600 & sleep 600")
    with PodProcess(data, "job-1") as pod:
        harness.wait(lambda: len(harness.of(WorkerStarted)) == 2)
        pids = [item.pid for item in harness.of(WorkerStarted)]
        harness.kill_agent()
        until(lambda: not any(map(alive, pids)), "ranks outlived their agent")
        assert pod.process.poll() is None
        node = harness.start_agent()
        harness.release(first, ReleaseReason.RESTARTING)
        harness.allocate(node, attempt=2, run="exit 3")
        exits = {key: item for key, item in harness.exits(2).items() if key[0] == 2}
        assert {item.exit_code for item in exits.values()} == {3}


def test_a_gang_without_a_pod_or_a_command_fails_with_the_reason(
    tmp_path: Path, kafka_bootstrap: str, data: Path
) -> None:
    settings = {
        "GANGLINE_DATA_DIR": str(data),
        "GANGLINE_RANKS_IN_PODS": "true",
        "GANGLINE_POD_BIND_S": "0.5",
    }
    with NodeHarness(tmp_path, kafka_bootstrap, **settings) as harness:
        node = harness.start_agent()
        harness.allocate(node, run="true", gpus=[0])
        found: WorkerExited = harness.exits(1)[1, 0]
        assert found.reason is ExitReason.LAUNCH_FAILED
        assert f"pod not bound: no pod of the gang came to node {node.node_id}" in found.message
        harness.allocate(node, job_id="job-2", image="example.test/train:1", gpus=[0])
        harness.wait(lambda: len(harness.of(WorkerExited)) == 2)
        refused = "a pod does not run ENTRYPOINT or CMD of its image; give command or run"
        assert refused in harness.of(WorkerExited)[1].message
