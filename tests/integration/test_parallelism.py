"""Each kind of parallelism, as real processes over gloo: the losses are those of one process.

Losses (in nats) and gradient norms are within TOLERANCE of one process's at each step: sums of the
same numbers are taken in another order. Gradients are compared too because AdamW hides a wrong
factor. Checkpoints of one layout load into any other, bit for bit.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest
import torch

from gangline_worker.checkpoint.commit import committed
from gangline_worker.checkpoint.loader import Checkpoint
from gangline_worker.checkpoint.local import holdings
from support.harnesses.gang import EXIT_SETTINGS, SAVE_ENV, Gang, Run, train

STEPS = 6
SETTINGS = (f"steps={STEPS}", "checkpoint_every_steps=3")
PROMOTE = {"GANGLINE_PROMOTE": "final"}  # a loss is measured with each save, in the middle too
TOLERANCE = 5e-6
EXPERTS = ("experts=4", "experts_per_token=2")
LAYOUTS = {
    "ddp": (2, ("parallel={replicas: 2}",)),
    "fsdp": (2, ("parallel={shard: 2}",)),
    "hsdp": (4, ("parallel={replicas: 2, shard: 2}",)),
    "tensor": (2, ("parallel={tensor: 2}",)),
    "replicas-tensor": (
        4,
        ("parallel={replicas: 2, tensor: 2}", "accumulation=2", "recompute=true"),
    ),
    "fsdp-tensor": (4, ("parallel={shard: 2, tensor: 2}",)),
    "pipeline": (2, ("parallel={pipeline: 2}", "accumulation=4")),
    "fsdp-pipeline": (4, ("parallel={shard: 2, pipeline: 2}", "accumulation=2")),
    "tensor-pipeline": (4, ("parallel={tensor: 2, pipeline: 2}", "accumulation=4")),
    "fsdp-tensor-pipeline": (
        8,
        ("parallel={shard: 2, tensor: 2, pipeline: 2}", "accumulation=2"),
    ),
}
EXPERT_LAYOUTS = {
    "replicated": (2, ("parallel={replicas: 2}",)),
    "sharded": (2, ("parallel={shard: 2}", "accumulation=2", "recompute=true")),
    "expert": (2, ("parallel={shard: 2, expert: 2}",)),
    "expert-replicas": (4, ("parallel={replicas: 2, shard: 2, expert: 2}",)),
    "expert-pipeline": (4, ("parallel={replicas: 2, pipeline: 2, expert: 2}", "accumulation=2")),
}

NIGHTLY = {
    "hsdp", "fsdp-tensor", "fsdp-pipeline", "tensor-pipeline",  # all within fsdp-tensor-pipeline
    "expert", "expert-pipeline",
}  # fmt: skip


ALL_BUT_FSDP = ("tensor", "pipeline", "fsdp-tensor", "tensor-pipeline", "ddp", "hsdp")
ALL_WITH_EXPERTS = ("expert", "sharded", "expert-replicas", "expert-pipeline")


def names_of(
    layouts: Iterable[str], nightly: Collection[str] = NIGHTLY
) -> list[pytest.ParameterSet]:
    """Each layout by its name; `make soak` alone runs those that are `nightly`."""
    return [
        pytest.param(name, marks=pytest.mark.nightly if name in nightly else ()) for name in layouts
    ]


def chains(short: tuple[str, ...], whole: tuple[str, ...]) -> list[pytest.ParameterSet]:
    """Layouts one after another; `make soak` alone runs the whole chain."""
    return [
        pytest.param(short, id="short"),
        pytest.param(whole, id="whole", marks=pytest.mark.nightly),
    ]


def last(run: Run) -> Path:
    """The newest committed checkpoint."""
    return max(committed(run.directory / "checkpoints"), key=lambda folder: folder.name)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All of a checkpoint; refused is one that has an element twice or never."""
    checkpoint = Checkpoint(folder)
    found = {
        name: torch.empty(piece.global_shape, dtype=getattr(torch, piece.dtype))
        for name, piece in checkpoint.tensors().items()
    }
    checkpoint.fill(holdings(found, 0, 1))
    return found


def assert_alike(run: Run, alone: Run) -> None:
    """The same losses, and weights that drifted no further than those of one process may."""
    assert list(run.losses()) == list(range(1, STEPS + 1))
    recorded, measured = (Checkpoint(last(one)).record.metrics["eval_loss"] for one in (alone, run))
    assert measured == pytest.approx(recorded, abs=1e-3), "by this a checkpoint is known again"
    for metric in ("loss", "grad_norm"):
        expected_by_step = alone.by_step(metric)
        for step, value in run.by_step(metric).items():
            expected_value = pytest.approx(expected_by_step[step], abs=TOLERANCE, rel=0)
            assert value == expected_value, (metric, step)
    expected, found = tensors(last(alone)), tensors(last(run))
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-3, rtol=0, msg=name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process."""
    return train(tmp_path_factory.mktemp("alone") / "dense", 1, *SETTINGS, extra_env=PROMOTE)


@pytest.fixture(scope="module")
def alone_with_experts(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One process, with a mixture of experts."""
    directory = tmp_path_factory.mktemp("alone") / "experts"
    return train(directory, 1, *SETTINGS, *EXPERTS, extra_env=PROMOTE)


@pytest.mark.parametrize("name", names_of(LAYOUTS))
def test_the_losses_are_those_of_one_process(alone: Run, tmp_path: Path, name: str) -> None:
    ranks, settings = LAYOUTS[name]
    run = train(tmp_path / name, ranks, *SETTINGS, *settings, extra_env=PROMOTE)
    assert_alike(run, alone)


@pytest.mark.parametrize("name", names_of(EXPERT_LAYOUTS))
def test_experts_give_the_losses_of_one_process(
    alone_with_experts: Run, tmp_path: Path, name: str
) -> None:
    ranks, settings = EXPERT_LAYOUTS[name]
    run = train(tmp_path / name, ranks, *SETTINGS, *EXPERTS, *settings, extra_env=PROMOTE)
    assert_alike(run, alone_with_experts)


def saved_again(source: Path, directory: Path, ranks: int, *settings: str) -> Path:
    """Load a checkpoint under a layout and save it, without a step between."""
    gang = Gang(
        directory,
        ranks,
        (f"steps={STEPS}", *settings),
        resume_from=source,
        extra_env={SAVE_ENV: "1"},
    )
    run = gang.wait()
    assert set(run.codes) == {0}, run.text
    return last(run)


@pytest.mark.parametrize("names", chains(("tensor-pipeline", "hsdp"), ALL_BUT_FSDP))
def test_a_checkpoint_goes_through_layouts_bit_for_bit(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    ranks, settings = LAYOUTS["fsdp"]
    folder = last(train(tmp_path / "first", ranks, f"steps={STEPS}", *settings))
    expected = tensors(folder)
    for name in names:
        ranks, settings = LAYOUTS[name]
        folder = saved_again(folder, tmp_path / name, ranks, *settings)
        found = tensors(folder)
        assert found.keys() == expected.keys(), name
        for tensor in found:
            assert torch.equal(found[tensor], expected[tensor]), (name, tensor)
    found = tensors(saved_again(folder, tmp_path / "alone", 1))
    assert all(torch.equal(found[tensor], expected[tensor]) for tensor in expected)


@pytest.mark.parametrize("names", chains(("sharded", "expert-pipeline"), ALL_WITH_EXPERTS))
def test_experts_go_through_layouts_bit_for_bit(
    alone_with_experts: Run, tmp_path: Path, names: tuple[str, ...]
) -> None:
    folder, expected = last(alone_with_experts), tensors(last(alone_with_experts))
    for name in names:
        ranks, settings = EXPERT_LAYOUTS[name]
        folder = saved_again(folder, tmp_path / name, ranks, *EXPERTS, *settings)
        found = tensors(folder)
        assert found.keys() == expected.keys(), name
        for tensor in found:
            assert torch.equal(found[tensor], expected[tensor]), (name, tensor)


def test_training_goes_on_under_another_layout(alone: Run, tmp_path: Path) -> None:
    ranks, settings = LAYOUTS["fsdp-tensor"]
    half = train(tmp_path / "half", ranks, f"steps={STEPS}", "checkpoint_every_steps=4", *settings)
    [source] = [
        folder for folder in committed(half.directory / "checkpoints") if folder.name[-1] == "4"
    ]
    ranks, settings = LAYOUTS["pipeline"]
    run = train(tmp_path / "rest", ranks, f"steps={STEPS}", *settings, resume_from=source)
    assert list(run.losses()) == list(range(5, STEPS + 1))
    for step, loss in run.losses().items():
        assert loss == pytest.approx(alone.losses()[step], abs=TOLERANCE, rel=0)


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    ranks, layout = LAYOUTS["tensor-pipeline"]
    settings = (f"steps={STEPS}", "checkpoint_every_steps=3", *layout)
    whole = train(tmp_path / "whole", ranks, *settings)
    dead = Gang(tmp_path / "killed", ranks, settings, killed=(3, 5)).wait()
    assert dead.codes == (1, 1, 1, -signal.SIGKILL), dead.text
    [found] = committed(tmp_path / "killed" / "checkpoints")
    gang = Gang(tmp_path / "killed", ranks, settings, attempt=2, resume_from=found)
    run = gang.wait()
    assert set(run.codes) == {0}, run.text
    assert run.losses() == whole.losses()
    assert run.by_step("grad_norm") == whole.by_step("grad_norm")


@pytest.mark.parametrize(
    "name", names_of(["ddp", "fsdp", "fsdp-tensor", "pipeline"], {"fsdp-tensor", "pipeline"})
)
def test_bfloat16_computes_and_keeps_float32_weights(alone: Run, tmp_path: Path, name: str) -> None:
    ranks, settings = LAYOUTS[name]
    run = train(tmp_path / name, ranks, "steps=2", "dtype=bfloat16", *settings)
    for step, loss in run.losses().items():
        assert loss == pytest.approx(alone.losses()[step], abs=0.03)
        assert loss != alone.losses()[step], "it was computed otherwise"
    pieces = Checkpoint(last(run)).tensors().values()
    assert {piece.dtype for piece in pieces} == {"float32"}


def test_the_job_s_layout_is_taken_and_refused_by_all_ranks(tmp_path: Path) -> None:
    gang = Gang(
        tmp_path / "run", 2, ("layers=3",), extra_env={"GANGLINE_PARALLEL": '{"pipeline": 2}'}
    )
    run = gang.wait()
    assert run.codes == (EXIT_SETTINGS, EXIT_SETTINGS), run.text
    assert run.text.count("parallel.pipeline (2) must divide layers (3)") == 2
