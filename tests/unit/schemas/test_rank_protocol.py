"""What any program may send to its agent: refused, or something that all others can bear."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.limits import INT53_MAX, LATEST
from gangline_schemas.rank_protocol import FROM_RANK, LeaveOutSamples, Report

DIGEST = {"key": "k", "size_bytes": 1, "xxh3": "0" * 32}
SHARD = {"kind": "shard_ready", "rank": 0, "world_size": 1, "manifest": DIGEST, "shard": DIGEST}
LARGEST = 2**63 - 1
LATEST_MS = int(LATEST.timestamp() * 1000)


def report(step: list[int], time_ms: list[int], **metrics: list[float]) -> dict[str, object]:
    return {"kind": "report", "step": step, "time_ms": time_ms, "metrics": metrics}


def left_out(first: int, count: int) -> dict[str, object]:
    return {"kind": "leave_out", "left_out": [{"first": first, "count": count}]}


@pytest.mark.parametrize(
    "frame",
    [
        report([1, 2], [1]),
        report([1], [1], loss=[1.0, 2.0]),
        report([1], [1], **{f"m{number}": [1.0] for number in range(1001)}),
        report(list(range(10_001)), [0] * 10_001),
        report([2**53], [1]),
        report([-1], [1]),
        report([1], [LATEST_MS + 1]),
        report([1, 2], [1, 10**400]),
        {**SHARD, "step": 2**53},
        {**SHARD, "step": 1, "write_s": 1e308},
        {**SHARD, "step": 1, "write_s": -1.0},
        {**SHARD, "step": -1},
        left_out(LARGEST, 1),
        left_out(int("9" * 4300), int("9" * 4300)),
    ],
)
def test_what_nobody_could_pass_on_is_refused(frame: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        FROM_RANK.validate_json(json.dumps(frame))


def test_the_largest_report_can_be_published() -> None:
    metrics = {f"m{number}": [0.5] * 10 for number in range(1000)}
    for steps, columns in ((10, metrics), (10_000, {})):
        said = FROM_RANK.validate_json(
            json.dumps(report([INT53_MAX] * steps, [LATEST_MS] * steps, **columns))
        )
        assert isinstance(said, Report)
        step, time_ms, values = said.step, said.time_ms, said.metrics
        event = WorkerStep(
            run_id="r", team="t", attempt=1, rank=0, step=step, time_ms=time_ms, metrics=values
        )
        assert len(event.step) == steps


def test_the_last_samples_of_all_can_be_left_out() -> None:
    said = FROM_RANK.validate_json(json.dumps(left_out(LARGEST - 1, 1)))
    assert isinstance(said, LeaveOutSamples)
    assert f"{said.left_out[0].first + said.left_out[0].count}" == str(LARGEST)
