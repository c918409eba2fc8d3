"""What lies on GPUs is saved as it was when the save began, and comes back bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from gangline_worker.checkpoint.commit import commit_local
from gangline_worker.checkpoint.loader import Checkpoint
from gangline_worker.checkpoint.local import holdings
from gangline_worker.checkpoint.saver import AsyncSaver, SaverIdentity
from gangline_worker.checkpoint.staging import staging
from gangline_worker.training.saving import all_finite
from support.fixtures.gpu import needs_gpus, rank_variables

ELEMENTS = 16 << 20
BUSY_CYCLES = 500_000_000  # a quarter of a second on the GPU
State = dict[str, torch.Tensor]


def saver_in(directory: Path, full_every: int = 1) -> AsyncSaver:
    identity = SaverIdentity(directory, "job-1", 1, 0, 1, full_every)
    return AsyncSaver(identity, lambda _: None)


def finished(saver: AsyncSaver, directory: Path, step: int) -> Checkpoint:
    saver.wait()
    [result] = saver.results()
    assert result.error is None
    folder = directory / "attempt-0001" / f"step-{step:010d}"
    assert commit_local(folder, 1)
    return Checkpoint(folder)


def assert_holds(checkpoint: Checkpoint, expected: State) -> None:
    filled = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
    checkpoint.fill(holdings(filled, 0, 1))
    for name, tensor in expected.items():
        found, wanted = (one.contiguous().view(torch.uint8) for one in (filled[name], tensor))
        assert torch.equal(found, wanted), name


def some_state(device: str = "cuda") -> State:
    made = torch.Generator(device).manual_seed(3)
    return {
        "half": torch.randn(300, 70, generator=made, device=device).to(torch.bfloat16),
        "large": torch.randn(ELEMENTS, generator=made, device=device),
        "turned": torch.randn(130, 40, generator=made, device=device).t(),
        "counts": torch.arange(11, device=device),
        "step": torch.tensor(7.0, device=device).reshape(1),
    }


def take_step(state: State, by: int) -> None:
    for tensor in state.values():
        tensor.add_(by)


def assert_saved_between_steps(saver: AsyncSaver, directory: Path, step: int, state: State) -> None:
    """The save holds what was there when it began, also while the GPU is busy with steps."""
    take_step(state, step)
    expected = {name: tensor.clone() for name, tensor in state.items()}
    saver.begin(step, state, {}, {})
    for _ in range(20):  # the next step's passes only read
        for tensor in state.values():
            tensor.square().sum()
    saver.wait_copied()
    for _ in range(3):
        take_step(state, 100)
    assert_holds(finished(saver, directory, step), expected)


@needs_gpus(1)
@pytest.mark.parametrize("in_cpu", [None, "half", "large"], ids=["all on it", "first", "second"])
def test_a_save_beside_further_steps_holds_what_was_there(
    tmp_path: Path, in_cpu: str | None
) -> None:
    """The GPU is still busy with a step when its save begins; the next ones follow at once."""
    state = {name: t.cpu() if name == in_cpu else t for name, t in some_state().items()}
    saver = saver_in(tmp_path)
    saver.prepare(state)
    for step in range(1, 4):
        torch.cuda._sleep(BUSY_CYCLES)
        assert_saved_between_steps(saver, tmp_path, step, state)


@needs_gpus(1)
@pytest.mark.parametrize("full_every", [1, 3], ids=["whole", "incremental"])
def test_a_step_on_a_stream_of_its_own_is_waited_for(tmp_path: Path, full_every: int) -> None:
    state, saver = some_state(), saver_in(tmp_path, full_every)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for step in (1, 2):
            torch.cuda._sleep(BUSY_CYCLES)
            assert_saved_between_steps(saver, tmp_path, step, state)


@needs_gpus(1)
def test_a_restore_takes_no_more_of_the_gpu_than_one_tensor(tmp_path: Path) -> None:
    state, saver = some_state(), saver_in(tmp_path)
    saver.begin(1, state, {}, {})
    checkpoint = finished(saver, tmp_path, 1)
    filled = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    checkpoint.fill(holdings(filled, 0, 1))
    largest = max(tensor.nbytes for tensor in state.values())
    assert torch.cuda.max_memory_allocated() - before <= largest
    assert torch.equal(filled["large"], state["large"])


@needs_gpus(1)
def test_a_saver_that_began_in_main_memory_saves_from_a_gpu_too(tmp_path: Path) -> None:
    saver = saver_in(tmp_path)
    for step, device in ((1, "cpu"), (2, "cuda"), (3, "cpu")):
        state = some_state(device)
        saver.begin(step, state, {}, {})
        assert_holds(finished(saver, tmp_path, step), state)


@needs_gpus(1)
def test_staging_memory_is_pinned_and_begins_with_a_page() -> None:
    region = staging(3 << 20, pinned=True)
    assert region.is_pinned()
    assert region.data_ptr() % os.sysconf("SC_PAGESIZE") == 0, "its writes go past no page cache"


@needs_gpus(1)
@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_a_weight_that_is_not_finite_is_found(bad: float) -> None:
    weights = [torch.ones(1000, 1000, device="cuda"), torch.ones(9, device="cuda")]
    assert all_finite(weights)
    weights[0][500, 500] = bad
    assert not all_finite(weights)


@needs_gpus(2)
def test_parts_on_several_gpus_are_all_waited_for(tmp_path: Path) -> None:
    parts = {f"{g}.{n}": t for g in (0, 1) for n, t in some_state(f"cuda:{g}").items()}
    saver = saver_in(tmp_path)
    for step in (1, 2):
        for gpu in (0, 1):
            with torch.cuda.device(gpu):
                torch.cuda._sleep(BUSY_CYCLES)
        assert_saved_between_steps(saver, tmp_path, step, parts)


@needs_gpus(2)
def test_a_save_from_one_gpu_takes_no_memory_of_another(tmp_path: Path) -> None:
    program = """
        import sys, torch
        from pathlib import Path
        from gangline_worker.checkpoint.saver import AsyncSaver, SaverIdentity
        torch.cuda.set_device(1)
        state = {"a": torch.ones(1 << 20, device="cuda:1")}
        saver = AsyncSaver(SaverIdentity(Path(sys.argv[1]), "job-1", 1, 0, 1), lambda _: None)
        saver.begin(1, state, {}, {})
        saver.wait()
        assert saver.results()[0].error is None
        print([torch._C._cuda_hasPrimaryContext(gpu) for gpu in (0, 1)])
    """
    assert said_by(program, str(tmp_path), **rank_variables(0, 1)) == "[False, True]"


@needs_gpus(1)
def test_a_gpus_random_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    program = """
        import sys, torch
        from pathlib import Path
        from gangline_worker.training import state
        path, first = Path(sys.argv[1]), sys.argv[2] == "first"
        device = torch.device("cuda", 0)
        state.seed_everything(5 if first else 6, 0)
        torch.randn(1000 if first else 10, device=device)
        if first:
            path.write_bytes(state.capture_rng(device).encode())
        else:
            state.restore_rng(state.RngState.decode(path.read_bytes()), device)
        print(torch.randn(4, device=device).tolist(), torch.randn(2).tolist())
    """
    kept, given = str(tmp_path / "rng"), rank_variables(0)
    first = said_by(program, kept, "first", **given)
    assert said_by(program, kept, "second", **given) == first


def said_by(program: str, *arguments: str, **environment: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(program), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
