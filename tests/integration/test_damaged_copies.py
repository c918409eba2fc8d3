"""A checkpoint damaged on a node after its agent verified it: real agent, rank and store."""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime

from gangline_schemas.checkpoint import CommitRecord, commit_key, job_prefix
from gangline_schemas.events.scheduling import CheckpointRef, GangAllocated, ReleaseReason
from gangline_schemas.events.workers import CheckpointShardWritten, ExitReason
from gangline_storage.local import LocalStore
from support.fixtures.node import harness
from support.harnesses.node import TEAM, NodeHarness

__all__ = ["harness"]  # a fixture is used by being in this module

SCRIPT = textwrap.dedent("""
    import os, torch
    from pathlib import Path
    from gangline_worker import restore, save
    from gangline_worker.checkpoint.files import CorruptCheckpoint

    def flip(path):
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)

    if "GANGLINE_RESUME_FROM" not in os.environ:
        save({"weights": torch.arange(1000.0)}, step=7)
    else:
        folder = Path(os.environ["GANGLINE_RESUME_FROM"])
        shard, manifest = folder / "rank-00000.bin", folder / "rank-00000.json"
        for damage in (
            lambda: None,
            lambda: flip(shard),
            lambda: os.truncate(shard, 100),
            lambda: shard.unlink(),
            lambda: flip(manifest),
            lambda: manifest.unlink(),
        ):
            damage()
            weights = restore().state["weights"]
            print("restored", torch.equal(weights, torch.arange(1000.0)), flush=True)
        flip(shard)
        os.truncate(os.environ["STORED"], 100)
        try:
            restore()
        except CorruptCheckpoint as error:
            print("refused", error, flush=True)
""")


def committed(harness: NodeHarness, allocation: GangAllocated) -> CheckpointRef:
    """Commit what the attempt wrote, as the checkpoint service does."""
    [part] = harness.of(CheckpointShardWritten)
    record = CommitRecord(
        job_id="job-1",
        attempt=1,
        step=7,
        world_size=1,
        manifests=(part.manifest,),
        shards=part.shards,
        committed_at=datetime.now(UTC),
    )
    key = commit_key(job_prefix(TEAM, "job-1", allocation.spec), 1, 7)
    LocalStore(harness.store).put(key, record.encode(), if_absent=True)
    return CheckpointRef(job_id="job-1", attempt=1, step=7, world_size=1, commit_key=key)


def test_a_rank_reads_from_the_store_when_its_nodes_copy_is_damaged(
    harness: NodeHarness,
) -> None:
    command = ["python", "-c", SCRIPT]
    node = harness.start_agent()
    first = harness.allocate(node, gpus=(0,), command=command)
    assert harness.exits(1)[1, 0].reason is ExitReason.FINISHED, harness.lines(0)
    ref = committed(harness, first)
    harness.release(first, ReleaseReason.RESTARTING)
    [part] = harness.of(CheckpointShardWritten)
    stored = str(harness.store / part.shards[0].key)

    harness.allocate(
        node, attempt=2, gpus=(0,), resume=ref, command=command, env={"STORED": stored}
    )

    exits = harness.exits(2)
    assert exits[2, 0].reason is ExitReason.FINISHED, harness.lines(0, 2)
    harness.wait(
        lambda: harness.lines(0, 2).count("restored True") == 6, "it did not restore six times"
    )
    said = harness.lines(0, 2)
    assert [line for line in said if line.startswith("restored")] == ["restored True"] * 6
    assert any(line.startswith("refused corrupt checkpoint") for line in said), said
    notes = [line for line in said if line.startswith("gangline: ")]
    assert sum("a sound copy of the store lies there now" in line for line in notes) == 3
    assert sum("no other copy was found" in line for line in notes) == 1
    log = (harness.folder / "agent.log").read_text()
    assert log.count("checkpoint.copy_damaged") == 4
    assert log.count("checkpoint.file_wanted") == 2, "what is not there was mostly not brought"
