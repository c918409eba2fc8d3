"""Jobs that train without damaged data are flagged for review: each block once."""

from __future__ import annotations

from gangline_faults.core.state import FLAGS_OF_A_JOB
from gangline_schemas.events.faults import JobFlagged
from gangline_schemas.events.workers import DataBlockDamaged
from support.builders.faults import allocated, ended, fault_run, joined

SNAPSHOT = "corpus@xxh3-0f343b0931126a20f133d67c2b018a3b"


def damaged(
    block: int = 3, *, rank: int = 0, attempt: int = 1, job_id: str = "job-1"
) -> DataBlockDamaged:
    return DataBlockDamaged(
        job_id=job_id,
        attempt=attempt,
        rank=rank,
        node_id=f"n{rank + 1}",
        snapshot=SNAPSHOT,
        shard="shard-000002.tok",
        block=block,
        reason="holds other bytes",
    )


def test_a_block_is_flagged_once_whoever_meets_it_and_however_often() -> None:
    run = fault_run()
    run.feed(joined("n1"))
    run.feed(joined("n2"))
    run.feed(allocated())
    assert run.feed(damaged(rank=1)) == [
        JobFlagged(
            job_id="job-1",
            attempt=1,
            rank=1,
            node_id="n2",
            snapshot=SNAPSHOT,
            shard="shard-000002.tok",
            block=3,
            reason="holds other bytes",
            flagged_at=run.now,
        )
    ]
    assert run.feed(damaged(rank=0)) == []
    run.take_over()
    assert run.feed(damaged(attempt=2)) == []
    assert [event.type for event in run.feed(damaged(block=4))] == ["job.flagged"]
    assert [event.type for event in run.feed(damaged(job_id="job-2"))] == ["job.flagged"]


def test_it_may_be_told_before_the_gang_is_known_and_after_the_job_ended() -> None:
    run = fault_run()
    assert len(run.feed(damaged())) == 1
    run.feed(allocated())
    run.feed(ended())
    assert run.feed(damaged()) == []
    assert len(run.feed(damaged(block=4))) == 1


def test_no_job_is_flagged_without_end() -> None:
    run = fault_run()
    said = [event for block in range(FLAGS_OF_A_JOB + 5) for event in run.feed(damaged(block))]
    assert len(said) == FLAGS_OF_A_JOB
    run.take_over()
    assert run.feed(damaged(FLAGS_OF_A_JOB + 1)) == []
