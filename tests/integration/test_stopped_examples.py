"""Each example, stopped in each way while it trains: no finished step is lost.

Real ranks under a real agent. An example that saves is asked to stop, saves its last step, with the
workers of its data loader alive, and exits 0. One that knows nothing of Gangline ends at once.
"""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path

import pytest

from gangline_schemas.events.scheduling import GangStopping, StopReason
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.events.workers import CheckpointShardWritten, ExitReason, WorkerExited
from support.builders.checkpoints import resumes
from support.fakes.metadata_server import MetadataServer
from support.harnesses.node import NodeHarness

TESTS = Path(__file__).parents[1]
HARNESSES = TESTS / "support" / "harnesses"
EXAMPLES = TESTS.parent / "examples"
STEPS = 1_000_000
GRACE_S = 60
TORCHRUN = "torchrun-script"
SMALL = {"dim": 32, "layers": 2, "heads": 2, "seq_len": 32, "batch_size": 8, "log_every_steps": 100}


@dataclass(frozen=True)
class Example:
    name: str
    command: tuple[str, ...]
    gpus: int
    hyperparameters: dict[str, object] = field(default_factory=dict)
    spec: dict[str, object] = field(default_factory=dict)


def script(path: str, gpus: int, **hyperparameters: object) -> Example:
    paced = ("python", str(HARNESSES / "paced_script.py"), str(EXAMPLES / path))
    return Example(path.partition("/")[0], paced, gpus, hyperparameters)


def built_in(name: str, gpus: int, **spec: object) -> Example:
    """An example of our own trainer."""
    asked = {**SMALL, "strategy": "fsdp"} if spec.get("strategy") == "fsdp" else SMALL
    asked = {**asked, "accumulation": 4} if "parallel" in spec else asked
    return Example(name, ("python", str(HARNESSES / "paced.py")), gpus, asked, spec)


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


SAVING = [
    script("metrics-script/fit.py", 1),
    script("fsdp-script/train.py", 2, save_every=STEPS),
    built_in("train-single", 1),
    *(
        [script("hf-trainer-script/train.py", 2, save_every=STEPS)]
        if installed("transformers") and installed("accelerate")
        else []
    ),
]
SHARDED = [
    built_in("train-fsdp", 2, strategy="fsdp"),
    built_in("train-elastic", 4, strategy="fsdp"),
    built_in("train-parallel", 4, parallel={"tensor": 2, "pipeline": 2}),
]
NOT_SAVING = Example(
    TORCHRUN, ("python", str(EXAMPLES / "torchrun-script/train.py"), "--epochs", str(STEPS)), 2
)


def last_step(harness: NodeHarness, job_id: str) -> int:
    """The last step that a rank of the job reported."""
    return max(
        (max(item.step) for item in harness.of(WorkerStep) if item.run_id == job_id), default=0
    )


def saves(harness: NodeHarness, example: Example) -> set[tuple[int, int]]:
    """The rank and the step of each part of a checkpoint that is in the store."""
    return {
        (item.rank, item.step)
        for item in harness.of(CheckpointShardWritten)
        if item.job_id == example.name
    }


def train_all(harness: NodeHarness, saving: Sequence[Example]) -> None:
    """All these examples and the other one at once, until each has trained for some steps."""
    node = harness.start_agent(warm="fork")
    first = 0
    for example in (*saving, NOT_SAVING):
        harness.allocate(
            node,
            job_id=example.name,
            gpus=range(first, first + example.gpus),
            command=example.command,
            hyperparameters={"steps": STEPS, **example.hyperparameters},
            checkpoint={"interval_minutes": 600},
            stop_grace_seconds=GRACE_S,
            **example.spec,
        )
        first += example.gpus
    harness.wait(lambda: all(last_step(harness, example.name) >= 3 for example in saving))
    harness.wait(lambda: any("epoch 2" in line for line in harness.lines(0, job_id=TORCHRUN)))


def stop_by(*reasons: StopReason) -> Callable[[NodeHarness, MetadataServer], None]:
    """Each job for one of the reasons, in turn."""

    def stop(harness: NodeHarness, _: MetadataServer) -> None:
        deadline = datetime.now(UTC) + timedelta(seconds=GRACE_S)
        for job_id, reason in zip(harness.job_ids, cycle(reasons), strict=False):
            event = GangStopping(job_id=job_id, attempt=1, reason=reason, deadline=deadline)
            harness.publish(job_id, event)

    return stop


def stop_agent(harness: NodeHarness, _: MetadataServer) -> None:
    assert harness.agent is not None
    harness.agent.send_signal(signal.SIGTERM)


def give_notice(_: NodeHarness, cloud: MetadataServer) -> None:
    goes_at = datetime.now(UTC) + timedelta(seconds=120)
    cloud.spot_action = {"action": "terminate", "time": f"{goes_at:%Y-%m-%dT%H:%M:%SZ}"}


STOPS = {
    "preempted or cancelled": stop_by(StopReason.PREEMPTED, StopReason.CANCELLED),
    "preempted": stop_by(StopReason.PREEMPTED),
    "cancelled": stop_by(StopReason.CANCELLED),
    "drain": stop_by(StopReason.DRAIN),
    "the agent is stopped": stop_agent,
    "spot notice": give_notice,
}
FEW = [example for example in SAVING if example.gpus == 1]
CASES = [("preempted or cancelled", FEW), ("the agent is stopped", FEW), ("spot notice", FEW)]
NIGHTLY = [pytest.param(kind, SAVING, marks=pytest.mark.nightly) for kind in STOPS] + [
    pytest.param(kind, SHARDED, marks=pytest.mark.nightly)
    for kind in ("preempted or cancelled", "drain", "spot notice")
]


def named(value: object) -> str:
    return ", ".join(one.name for one in value) if isinstance(value, list) else str(value)


@pytest.mark.parametrize(("kind", "saving"), [*CASES, *NIGHTLY], ids=named)
def test_no_step_of_an_example_is_lost(
    kind: str, saving: list[Example], tmp_path: Path, kafka_bootstrap: str
) -> None:
    with (
        MetadataServer() as cloud,
        NodeHarness(
            tmp_path,
            kafka_bootstrap,
            GANGLINE_SLOTS="12",
            GANGLINE_STOP_GRACE_S=str(GRACE_S),
            GANGLINE_NOTICE_PROVIDER="aws",
            GANGLINE_NOTICE_URL=cloud.url,
            GANGLINE_NOTICE_INTERVAL_S="0.1",
        ) as harness,
    ):
        train_all(harness, saving)
        STOPS[kind](harness, cloud)
        harness.wait(
            lambda: all(len(saves(harness, example)) == example.gpus for example in saving)
        )
        for example in saving:  # as the scheduler does once the save is committed
            harness.publish(
                example.name, resumes(1, last_step(harness, example.name), job_id=example.name)
            )
        ranks = sum(example.gpus for example in (*saving, NOT_SAVING))
        harness.wait(lambda: len(harness.of(WorkerExited)) == ranks)
        exits = {(item.job_id, item.rank): item for item in harness.of(WorkerExited)}
        assert {item.reason for item in exits.values()} == {ExitReason.STOPPED}
        for example in saving:
            last = last_step(harness, example.name)
            for rank in range(example.gpus):
                found = exits[example.name, rank]
                log = "\n".join(harness.lines(rank, job_id=example.name)[-20:])
                assert found.exit_code == 0, f"{example.name}: {found.signal}\n{log}"
            assert saves(harness, example) == {(r, last) for r in range(example.gpus)}
        assert signal.SIGTERM in {exits[TORCHRUN, rank].signal for rank in range(NOT_SAVING.gpus)}
