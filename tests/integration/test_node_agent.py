"""The node agent as a process, on a real Kafka, with real ranks."""

from __future__ import annotations

import json
import os
import signal
import tarfile
from hashlib import sha256
from pathlib import Path
from textwrap import dedent

import pytest

from gangline_schemas.checkpoint import code_key
from gangline_schemas.events.logs import WorkerLog
from gangline_schemas.events.scheduling import ReleaseReason
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.events.workers import (
    CheckpointShardLost,
    ExitReason,
    NodeSaved,
    WorkerExited,
    WorkerStarted,
)
from support.fixtures.node import agent_of_this_module, shared
from support.harnesses.node import TEAM, NodeHarness, python
from support.waiting import until

__all__ = ["agent_of_this_module", "shared"]  # fixtures are used by being in this module


@pytest.fixture
def harness(shared: NodeHarness) -> NodeHarness:
    """All tests of this module have one agent, whose ranks start warm if their command may."""
    return shared


def test_a_gang_of_two_runs_and_all_it_wrote_and_reported_arrives(harness: NodeHarness) -> None:
    node = harness.start_agent()
    gang = harness.allocate(
        node,
        hyperparameters={"lr": 0.5},
        env={"COLOUR": "green"},
        command=python("""
            import json, os, sys
            from gangline_worker import flush, hyperparameters, report
            for step in range(1, 4):
                report({"loss": 1 / step}, step)
            flush()
            print(json.dumps(dict(os.environ)))
            print("to stderr", file=sys.stderr)
            print("torn", end="")
        """),
    )

    exits = harness.exits(2)

    assert {item.reason for item in exits.values()} == {ExitReason.FINISHED}
    assert {item.exit_code for item in exits.values()} == {0}
    assert {item.last_step for item in exits.values()} == {3}
    assert {item.rank for item in harness.of(WorkerStarted)} == {0, 1}
    harness.wait(lambda: all(len(harness.lines(rank)) == 3 for rank in (0, 1)))
    for rank in (0, 1):
        lines = harness.lines(rank)
        assert {"to stderr", "torn"} < set(lines)
        environment = json.loads(next(line for line in lines if line.startswith("{")))
        assert "AGENT_ONLY_VARIABLE" not in environment
        wanted = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(gang.rendezvous.port),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_RUN_ID": gang.job_id,
            "CUDA_VISIBLE_DEVICES": "",
            "COLOUR": "green",
            "GANGLINE_JOB_ID": gang.job_id,
            "GANGLINE_ATTEMPT": "1",
            "GANGLINE_NUM_NODES": "1",
        }
        assert {name: environment.get(name) for name in wanted} == wanted
        assert environment["HOME"].startswith(str(harness.folder))
        # The token stays secret.
        assert environment["GANGLINE_RANK_TOKEN"] == "[redacted]"
    harness.wait(lambda: len(harness.of(WorkerStep)) >= 2)
    steps = {item.rank: item for item in harness.of(WorkerStep)}
    assert steps[1].metrics["loss"] == pytest.approx((1.0, 1 / 2, 1 / 3))


def test_no_line_is_lost_when_a_rank_kills_itself_and_exits_are_told_apart(
    harness: NodeHarness,
) -> None:
    node = harness.start_agent()
    harness.allocate(
        node,
        command=python("""
            import os, signal, sys
            if os.environ["RANK"] == "0":
                for number in range(20_000):
                    sys.stdout.write(f"line {number}\\n")
                sys.stderr.write("last words")
                sys.stdout.flush(); sys.stderr.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit("wrong input")
        """),
    )

    exits = harness.exits(2)

    assert (exits[1, 0].reason, exits[1, 0].signal) == (ExitReason.FAILED, signal.SIGKILL)
    assert (exits[1, 1].reason, exits[1, 1].exit_code) == (ExitReason.FAILED, 1)
    assert exits[1, 1].message == "wrong input"
    harness.wait(lambda: len(harness.lines(0)) == 20_001)
    written = [line for line in harness.lines(0) if line.startswith("line ")]
    assert written == [f"line {number}" for number in range(20_000)]
    first_lines = [item.first_line for item in harness.of(WorkerLog) if item.rank == 0]
    assert len(first_lines) == len(set(first_lines))


def test_a_shell_line_and_a_command_that_does_not_exist(harness: NodeHarness) -> None:
    node = harness.start_agent()
    harness.allocate(node, job_id="shell", gpus=[0], run='echo "$0" here; exit 3')
    harness.allocate(node, job_id="missing", gpus=[1], command=["no-such-program"])

    harness.exits(1)
    harness.wait(lambda: len(harness.of(WorkerExited)) == 2)
    exits = {item.job_id: item for item in harness.of(WorkerExited)}

    assert exits["shell"].exit_code == 3
    assert exits["missing"].exit_code == 127
    assert "no-such-program" in exits["missing"].message


def test_what_a_program_caches_is_there_in_its_next_attempt_and_goes_with_the_job(
    harness: NodeHarness,
) -> None:
    script = python("""
        import os, pathlib
        home, cache = pathlib.Path.home(), pathlib.Path(os.environ["XDG_CACHE_HOME"])
        compiled = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        print("finds", sum((place / "mine").exists() for place in (home, cache, compiled)))
        for place in (home, cache, compiled):
            place.mkdir(parents=True, exist_ok=True)
            (place / "mine").touch()
    """)
    node = harness.start_agent()
    first = harness.allocate(node, gpus=(0,), command=script)
    harness.exits(1)
    harness.release(first, ReleaseReason.RESTARTING)
    second = harness.allocate(node, attempt=2, gpus=(0,), command=script)
    assert harness.exits(2)[2, 0].reason is ExitReason.FINISHED
    harness.wait(lambda: [*harness.lines(0), *harness.lines(0, 2)] == ["finds 0", "finds 2"])
    harness.release(second, ReleaseReason.SUCCEEDED)
    harness.wait(lambda: not files_below(harness.folder, "mine"), "something is left of the job")


def files_below(folder: Path, name: str) -> list[str]:
    """All files of that name, also while folders on the way are removed."""
    return [path for path, _, names in os.walk(folder) if name in names]


def test_a_program_can_make_sockets_where_its_temporary_files_lie(harness: NodeHarness) -> None:
    """As the workers of a data loader do; the name of a socket has 107 bytes."""
    make_sockets(harness, warm=True)


@pytest.mark.nightly
def test_and_so_it_can_without_a_warm_start(tmp_path: Path, kafka_bootstrap: str) -> None:
    with NodeHarness(tmp_path, kafka_bootstrap) as own:
        make_sockets(own, warm=False)


def make_sockets(harness: NodeHarness, *, warm: bool) -> None:
    script = harness.folder / "makes_sockets.py"
    script.write_text(
        dedent("""
            import os, pathlib, sys, tempfile
            from multiprocessing.connection import Listener
            print("torch" in sys.modules, tempfile.gettempdir() == os.environ["TMPDIR"])
            Listener(family="AF_UNIX").close()
            pathlib.Path(tempfile.gettempdir(), "left").touch()
        """)
    )
    node = harness.start_agent()
    gang = harness.allocate(node, job_id="j" * 60, gpus=(0,), command=["python", str(script)])
    assert harness.exits(1)[1, 0].reason is ExitReason.FINISHED, harness.lines(0)
    harness.wait(lambda: harness.lines(0) == [f"{warm} True"], "its sockets are elsewhere")
    harness.release(gang, ReleaseReason.SUCCEEDED)
    harness.wait(
        lambda: all("left" not in names for _, _, names in os.walk(harness.folder)),
        "something is left of the job",
    )


def test_saves_that_are_not_what_they_were_said_to_be_do_not_fill_the_disk(
    harness: NodeHarness,
) -> None:
    node = harness.start_agent()
    gang = harness.allocate(
        node,
        gpus=[0],
        command=python("""
            import os, pathlib, time
            from gangline_schemas.events.workers import ObjectDigest
            from gangline_schemas.rank_protocol import ShardReady
            from gangline_worker.reporting import reporter
            root = pathlib.Path(os.environ["GANGLINE_CHECKPOINT_DIR"])
            for step in range(1, 6):
                inner = f"attempt-0001/step-{step:010d}"
                (root / inner).mkdir(parents=True)
                (root / inner / "rank-00000.bin").write_bytes(b"cut")
                parts = {
                    name: ObjectDigest(key=f"{inner}/rank-00000.{end}", size_bytes=9, xxh3="0" * 32)
                    for name, end in (("shard", "bin"), ("manifest", "json"))
                }
                reporter().shard_ready(ShardReady(step=step, rank=0, world_size=1, **parts))
            reporter().flush()
            time.sleep(300)
        """),
    )
    saves = harness.folder / "node" / "checkpoints" / gang.job_id / "attempt-0001"
    harness.wait(
        lambda: {lost.step for lost in harness.of(CheckpointShardLost)} == set(range(1, 6))
    )
    until(lambda: sorted(path.name[-1] for path in saves.iterdir()) == ["4", "5"])
    assert harness.of(NodeSaved) == []


@pytest.mark.nightly  # tests/e2e/test_examples.py runs such a script too
def test_an_unmodified_torchrun_script_finds_its_peers(harness: NodeHarness) -> None:
    node = harness.start_agent()
    for attempt in (1, 2):
        gang = harness.allocate(
            node,
            attempt=attempt,
            command=python("""
                import torch
                import torch.distributed as dist
                dist.init_process_group("gloo")
                total = torch.ones(1) * (dist.get_rank() + 1)
                dist.all_reduce(total)
                print("total", total.item())
                dist.destroy_process_group()
            """),
        )
        exits = harness.exits(2 * attempt)
        assert exits[attempt, 0].reason is ExitReason.FINISHED, exits[attempt, 0].message
        harness.wait(lambda at=attempt: "total 3.0" in harness.lines(1, at))
        harness.release(gang, ReleaseReason.RESTARTING)


def test_a_secret_reaches_the_rank_and_nothing_else(harness: NodeHarness) -> None:
    value = "s3cr3t-\u00fc-value-of-this-test"
    folder = harness.secrets / TEAM
    folder.mkdir(parents=True)
    (folder / "DB_LOGIN").write_text(value + "\n")
    (folder / "DB_LOGIN").chmod(0o600)
    node = harness.start_agent()
    harness.allocate(
        node,
        secrets=["DB_LOGIN"],
        command=python("""
            import hashlib, os, sys
            value = os.environ["DB_LOGIN"]
            print("digest", hashlib.sha256(value.encode()).hexdigest())
            print("x" * 16_380 + value)
            sys.exit("cannot log in as " + value)
        """),
    )

    exits = harness.exits(2)
    harness.wait(lambda: len(harness.lines(0)) >= 3)

    assert f"digest {sha256(value.encode()).hexdigest()}" in harness.lines(0)
    assert exits[1, 0].message == "cannot log in as [redacted]"
    everything = b"".join(item.data.encode() for item in harness.events)
    said = (harness.folder / "agent.log").read_bytes()
    spooled = b"".join(
        path.read_bytes() for path in (harness.folder / "node").rglob("*") if path.is_file()
    )
    assert value.encode() not in everything + said + spooled
    assert b"s3cr3t" not in everything + said + spooled


def test_a_missing_secret_is_named_and_nothing_runs(harness: NodeHarness) -> None:
    node = harness.start_agent()
    harness.allocate(node, secrets=["HF_LOGIN"], run="echo ran")

    exits = harness.exits(2)

    assert {item.reason for item in exits.values()} == {ExitReason.LAUNCH_FAILED}
    assert {item.exit_code for item in exits.values()} == {78}
    assert "HF_LOGIN" in exits[1, 1].message
    assert harness.of(WorkerStarted) == []


def test_a_code_bundle_is_the_working_directory(harness: NodeHarness) -> None:
    source = harness.folder / "source"
    source.mkdir()
    (source / "train.py").write_text("print(open('data.txt').read())")
    (source / "data.txt").write_text("from the bundle")
    packed = harness.folder / "packed.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(source, arcname=".")
    digest = sha256(packed.read_bytes()).hexdigest()
    key = harness.store / code_key(TEAM, digest)
    key.parent.mkdir(parents=True)
    packed.rename(key)
    node = harness.start_agent()

    harness.allocate(node, code_bundle=digest, command=["python", "train.py"])

    assert harness.exits(2)[1, 0].reason is ExitReason.FINISHED
    harness.wait(lambda: harness.lines(0) == ["from the bundle"])
