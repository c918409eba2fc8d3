"""A node's health, scripted, through real parts: it keeps a node out, and lets its jobs save."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from textwrap import dedent
from typing import Any

import pytest

from gangline_schemas.events.faults import CheckpointRequested, GangWatched
from gangline_schemas.events.heartbeats import WorkerHeartbeat
from gangline_schemas.events.workers import NodeJoined, NodeUnfit
from gangline_worker.agent.decide.inputs import NodeChecked
from gangline_worker.agent.health.fitness import FitnessLimits
from gangline_worker.agent.health.node_check import PROBE, run
from gangline_worker.agent.health.node_check_host import LIMIT_S, NodeCheckHost
from gangline_worker.agent.health.source import HealthWatch, ScriptedHealth
from gangline_worker.agent.host.folders import Folders
from support.harnesses.node import NodeHarness, alive

WELL: dict[str, Any] = {"disk_free_gb": 50, "gpus": [{"index": 0, "ecc_uncorrected": 0}]}


def scripted(folder: Path, bootstrap: str, **settings: str) -> NodeHarness:
    says(folder, WELL)
    return NodeHarness(
        folder,
        bootstrap,
        GANGLINE_HEALTH_SCRIPT=str(folder / "health.json"),
        GANGLINE_HEALTH_INTERVAL_S="0.1",
        **settings,
    )


def says(folder: Path, health: dict[str, Any]) -> None:
    """What the node's health is from now on."""
    written = folder / "health.next"
    written.write_text(json.dumps(health))
    written.rename(folder / "health.json")


@contextmanager
def fault_manager(harness: NodeHarness, bootstrap: str) -> Iterator[None]:
    own = {"GANGLINE_BOOTSTRAP_SERVERS": bootstrap, "GANGLINE_TOPIC_PREFIX": harness.names.prefix}
    with (harness.folder / "faults.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gangline_faults"],
            env={"PATH": os.environ["PATH"], "GANGLINE_TICK_INTERVAL_S": "0.1", **own},
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def test_a_node_that_fails_its_check_joins_when_it_is_mended(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    settings = {"GANGLINE_NODE_CHECK": "light", "GANGLINE_CHECK_AGAIN_S": "0.3"}
    blocked = tmp_path / "node" / PROBE  # a folder: what is to be written there is not taken
    blocked.mkdir(parents=True)
    with scripted(tmp_path, kafka_bootstrap, **settings) as harness:
        says(tmp_path, WELL | {"disk_free_gb": 0.2})
        harness.launch_agent()
        harness.wait(lambda: bool(harness.of(NodeUnfit)), "nobody was told")
        assert harness.of(NodeUnfit)[0].reasons == (
            "its disk does not take data: Is a directory",
            "its disk has 0.20 GB left, and 1.00 are wanted",
        )
        says(tmp_path, WELL)
        left = ("its disk does not take data: Is a directory",)
        harness.wait(lambda: harness.of(NodeUnfit)[-1].reasons == left, "it was not checked again")
        assert harness.of(NodeJoined) == []
        assert harness.of(WorkerHeartbeat), "its agent lives"

        blocked.rmdir()
        harness.wait(lambda: len(harness.of(NodeJoined)) == 1, "it never joined")
        assert harness.of(NodeJoined)[0].node == harness.of(NodeUnfit)[0].node
        assert not blocked.exists()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[HealthWatch]:
    says(tmp_path, WELL)
    found = HealthWatch(lambda: ScriptedHealth(tmp_path / "health.json"), 60.0)
    found.start()
    yield found
    found.stop()


@pytest.mark.parametrize(
    ("limit_s", "disk_free_gb", "failures"),
    [
        (60.0, 50.0, ()),
        (60.0, 80.0, ("its disk has 50.00 GB left, and 80.00 are wanted",)),
        (0.01, 50.0, ("its check did not end within 0 s",)),
    ],
)
def test_what_the_agent_hears_of_a_check(
    tmp_path: Path,
    watch: HealthWatch,
    monkeypatch: pytest.MonkeyPatch,
    limit_s: float,
    disk_free_gb: float,
    failures: tuple[str, ...],
) -> None:
    monkeypatch.setitem(LIMIT_S, "light", limit_s)
    told: Queue[NodeChecked] = Queue()
    folders = Folders(tmp_path, tmp_path, tmp_path)
    host = NodeCheckHost("light", folders, FitnessLimits(disk_free_gb), watch, told.put)
    host.begin()
    assert told.get(timeout=60.0) == NodeChecked(failures)
    assert host.pid is not None
    assert not alive(host.pid)


def test_the_full_check_passes_here(tmp_path: Path) -> None:
    """Two further processes agree on a sum."""
    assert list(run(tmp_path, full=True)) == []


def test_a_job_saves_when_the_health_of_its_node_gets_worse(
    tmp_path: Path, kafka_bootstrap: str
) -> None:
    """Agent, fault manager and the rank's own library; the test allocates."""
    script = """
        import time
        from gangline_worker import should_checkpoint
        print("training", flush=True)
        while not should_checkpoint():
            time.sleep(0.05)
        print("saving", flush=True)
    """
    with scripted(tmp_path, kafka_bootstrap) as harness, fault_manager(harness, kafka_bootstrap):
        node = harness.start_agent()
        gang = harness.allocate(node, gpus=[0], command=["python", "-c", dedent(script)])
        harness.wait(lambda: harness.lines(0) == ["training"], "the rank never ran")
        harness.wait(lambda: bool(harness.of(GangWatched)), "the fault manager knows of no gang")
        assert harness.of(CheckpointRequested) == []

        errors = 0

        def asked() -> bool:  # the count rises until it was seen before and after
            nonlocal errors
            errors += 1
            says(tmp_path, WELL | {"gpus": [{"index": 0, "ecc_uncorrected": errors}]})
            return bool(harness.of(CheckpointRequested))

        harness.wait(asked, "nobody asked the gang to save")
        (request,) = harness.of(CheckpointRequested)
        assert (request.job_id, request.attempt) == (gang.job_id, 1)
        assert request.node_id == node.node_id
        assert "uncorrectable ECC error" in request.reason
        assert harness.exits(1)[1, 0].exit_code == 0
        harness.wait(lambda: harness.lines(0) == ["training", "saving"], "it did not save")
