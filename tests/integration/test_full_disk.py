"""A node whose disk is full to the last byte: its agent tells what happens, and ends nothing."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from gangline_schemas.events.workers import ExitReason, NodeJoined, WorkerExited
from support.fixtures.small_disk import mounted
from support.harnesses.node import NodeHarness

WAITS = """
    import pathlib, sys, time
    print("waits", flush=True)
    while not pathlib.Path("GO").exists():
        time.sleep(0.01)
    sys.exit(3)
"""


def exits(harness: NodeHarness) -> dict[str, WorkerExited]:
    """The ends by job."""
    return {item.job_id: item for item in harness.of(WorkerExited)}


def test_starts_and_ends_are_told_though_the_disk_takes_nothing(
    tmp_path: Path, kafka_bootstrap: str
):
    go, log = tmp_path / "go", tmp_path / "agent.log"
    with (
        mounted(tmp_path / "node", "64m") as disk,
        NodeHarness(tmp_path, kafka_bootstrap, GANGLINE_SPOOL_LIMIT_MB="8") as harness,
    ):
        node = harness.start_agent()
        command = ["python", "-c", dedent(WAITS).replace("GO", str(go))]
        harness.allocate(node, gpus=[0], command=command)
        harness.wait(lambda: harness.lines(0) == ["waits"])

        disk.fill()
        others = [f"other-{number}" for number in range(10)]  # the last page of a file has room
        for other in others:
            harness.allocate(node, job_id=other, gpus=[1], run="true")
        go.touch()

        harness.wait(lambda: len(exits(harness)) == 1 + len(others))
        ended = exits(harness)
        assert (ended["job-1"].reason, ended["job-1"].exit_code) == (ExitReason.FAILED, 3)
        assert {ended[other].reason for other in others} <= {
            ExitReason.FINISHED,
            ExitReason.LAUNCH_FAILED,
        }
        assert "spool.held_in_memory" in log.read_text()
        disk.clear()
        harness.allocate(node, job_id="job-2", gpus=[1], run="echo again")
        harness.wait(lambda: "job-2" in exits(harness))
        assert exits(harness)["job-2"].reason is ExitReason.FINISHED
        assert log.read_text().count("spool.held_in_memory") == 1
        assert [item.node for item in harness.of(NodeJoined)] == [node]
        assert harness.stop_agent() == 0
