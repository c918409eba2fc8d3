"""Saving one rank's state in one process: contents, failure, and what is refused."""

from __future__ import annotations

import math
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from gangline_schemas.checkpoint import ITEM_BYTES, MAX_MANIFEST_BYTES
from gangline_schemas.limits import METRICS_PER_STEP
from gangline_schemas.rank_protocol import ShardReady
from gangline_worker import Restored, restore, save
from gangline_worker.checkpoint.background import Background
from gangline_worker.checkpoint.commit import commit_local, committed, keep_latest
from gangline_worker.checkpoint.files import read_verified
from gangline_worker.checkpoint.loader import Checkpoint
from gangline_worker.checkpoint.local import fingerprint, holdings
from gangline_worker.checkpoint.public import identity
from gangline_worker.checkpoint.saver import AsyncSaver, SaverIdentity
from gangline_worker.checkpoint.tree import flatten
from gangline_worker.training.state import capture_rng, restore_rng, seed_everything
from support.builders.savers import saver_of, state


@pytest.mark.parametrize("name", sorted(ITEM_BYTES))
def test_every_dtype_comes_back_right_into_its_memory(tmp_path: Path, name: str) -> None:
    """A vector and a scalar; one of numpy's types or not."""
    dtype = getattr(torch, name)
    tensors = {"some": torch.tensor([0, 1, 2, 3]).to(dtype), "one": torch.tensor(1).to(dtype)}
    saver = saver_of(tmp_path, [])
    saver.begin(1, tensors, {}, {})
    saver.wait()
    folder = tmp_path / "attempt-0001" / "step-0000000001"
    assert commit_local(folder, 1)

    found = {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}
    Checkpoint(folder).fill(holdings(found, 0, 1))
    for key, tensor in tensors.items():
        assert torch.equal(found[key].to(torch.complex64), tensor.to(torch.complex64))


def test_the_copy_is_of_the_step_that_began_it(tmp_path: Path) -> None:
    tensors, saver = state(), saver_of(tmp_path, [])
    saver.begin(1, tensors, {}, {})
    saver.wait_copied()
    for tensor in tensors.values():
        tensor.zero_()
    saver.begin(2, tensors, {}, {})  # waits for the first
    saver.wait()
    first, second = (tmp_path / "attempt-0001" / f"step-{step:010d}" for step in (1, 2))
    filled = {name: torch.ones_like(tensor) for name, tensor in tensors.items()}
    assert commit_local(first, 1)
    Checkpoint(first).fill(holdings(filled, 0, 1))
    assert torch.equal(filled["a"], state()["a"])
    assert commit_local(second, 1)
    Checkpoint(second).fill(holdings(filled, 0, 1))
    assert not filled["a"].any()


def test_a_failed_save_is_a_result_and_the_next_one_works(tmp_path: Path) -> None:
    announced: list[ShardReady] = []
    saver = saver_of(tmp_path, announced)
    (tmp_path / "attempt-0001").write_text("in the way")
    saver.begin(1, state(), {}, {})
    saver.wait()
    [failed] = saver.results()
    assert failed.error is not None
    assert not announced
    (tmp_path / "attempt-0001").unlink()
    saver.begin(2, state(), {}, {})
    saver.wait()
    assert [result.error for result in saver.results()] == [None]
    assert [message.step for message in announced] == [2]


def test_a_copy_that_fails_leaves_nothing_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_saver: AsyncSaver, _job: object) -> None:
        raise RuntimeError("the device is gone")

    announced: list[ShardReady] = []
    saver = saver_of(tmp_path, announced)
    with monkeypatch.context() as patched:
        patched.setattr(AsyncSaver, "_copy", broken)
        saver.begin(1, state(), {}, {})
        saver.wait_copied()
        saver.wait()
    [failed] = saver.results()
    assert failed.error == "RuntimeError: the device is gone"
    assert not list(tmp_path.rglob("*rank-*"))
    saver.begin(2, state(), {}, {})
    saver.wait()
    assert [message.step for message in announced] == [2]


def test_what_fails_its_check_has_no_manifest(tmp_path: Path) -> None:
    def refuse() -> None:
        raise ValueError("not sound")

    announced: list[ShardReady] = []
    whose = SaverIdentity(tmp_path, "job-1", 1, 0, 1)
    saver = AsyncSaver(whose, announced.append, check=refuse)
    saver.begin(1, state(), {}, {})
    saver.wait()
    [failed] = saver.results()
    assert failed.error == "ValueError: not sound"
    assert not announced
    assert not list(tmp_path.rglob("rank-*")), "many of them would fill the disk"


def test_a_step_that_was_saved_is_not_written_over(tmp_path: Path) -> None:
    def save_of(step: int, epoch: int) -> str:
        saver.begin(step, tensors, {"epoch": epoch}, {})
        saver.wait()
        [result] = saver.results()
        return result.error or ""

    announced: list[ShardReady] = []
    tensors, saver = state(), saver_of(tmp_path, announced)
    assert not save_of(7, 1)
    assert not save_of(7, 1), "the same again is none to save"
    assert "give each save a step of its own" in save_of(7, 2)
    tensors["a"][0, 0] += 1
    assert "give each save a step of its own" in save_of(7, 1)
    assert "step 3 comes after step 7" in save_of(3, 1)
    for digest in (announced[0].shard, announced[0].manifest):
        read_verified(tmp_path / digest.key, digest)
    assert not save_of(8, 1)
    assert [message.step for message in announced] == [7, 8]


@pytest.mark.parametrize("full_every", [1, 4])
def test_a_step_whose_announcement_failed_is_saved_again(tmp_path: Path, full_every: int) -> None:
    """As when the disk is full once the record of its commit is written."""
    announced: list[ShardReady] = []

    def announce(message: ShardReady) -> None:
        announced.append(message)
        if len(announced) == 1:
            raise OSError("full")

    saver = AsyncSaver(SaverIdentity(tmp_path, "job-1", 1, 0, 1, full_every), announce)
    for error in ("OSError: full", None, None):
        saver.begin(5, state(), {}, {})
        saver.wait()
        assert [result.error for result in saver.results()] == [error]
    assert [message.step for message in announced] == [5, 5], "the third is the second again"


def test_the_last_save_of_a_script_is_written_while_the_interpreter_ends() -> None:
    script = """
import atexit
from gangline_worker.checkpoint.background import Background
background = Background("save")
atexit.register(lambda: print(background.submit(lambda: "written").result()))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "written\n"), ended.stderr


def test_a_background_thread_has_no_better_priority_than_its_process() -> None:
    """It may not have one without rights: of a process that `nice` started, saves hung."""

    def own() -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    def started() -> tuple[int, int, int]:
        os.nice(7)  # this thread alone, and those that it starts
        same, lower = Background("same"), Background("lower", 5)
        return own(), same.submit(own).result(10), lower.submit(own).result(10)

    with ThreadPoolExecutor(1) as threads:
        mine, same, lower = threads.submit(started).result(30)
    assert mine >= 7
    assert (same, lower) == (mine, min(mine + 5, 19))


def test_a_full_disk_is_seen_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    saver = saver_of(tmp_path, [])
    saver.begin(1, state(), {}, {})
    saver.wait()
    [failed] = saver.results()
    assert failed.error is not None
    assert "1,000 bytes free" in failed.error
    assert not list(tmp_path.rglob("rank-*"))


def test_only_the_latest_committed_are_kept(tmp_path: Path) -> None:
    saver = saver_of(tmp_path, [])
    for step in range(1, 6):
        saver.begin(step, state(), {}, {})
        saver.wait()
        if step not in {2, 5}:
            commit_local(tmp_path / "attempt-0001" / f"step-{step:010d}", 1)
    keep_latest(tmp_path, 2)
    left = sorted(int(f.name[5:]) for f in (tmp_path / "attempt-0001").iterdir())
    assert left == [3, 4, 5], "5 may still be committed"


def test_a_users_state_comes_back_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    given = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "history": [1.5, None, ("a", True)],
    }
    monkeypatch.setenv("GANGLINE_CHECKPOINT_DIR", str(tmp_path))
    assert restore() is None
    assert save(given, 9)
    assert save(given, 10), "waits for the save of step 9"
    monkeypatch.setenv("GANGLINE_RESUME_FROM", str(committed(tmp_path)[0]))
    found = restore()
    assert isinstance(found, Restored)
    assert found.step == 9
    tensors, skeleton = flatten(found.state)
    wanted, wanted_skeleton = flatten(given)
    assert skeleton == wanted_skeleton
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in wanted.items())
    torch.optim.AdamW(model.parameters()).load_state_dict(found.state["optimizer"])
    other = torch.nn.Linear(3, 2)
    again = restore({"model": other.state_dict()})
    assert again is not None
    assert torch.equal(other.weight, model.weight)


def test_schedules_with_infinities_and_empty_tensors_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    given = {
        "schedule": schedule.state_dict(),  # its `best` is infinite before the first step
        "worst": -math.inf,
        "last": math.nan,
        "by_limit": {math.inf: "none"},
        "adapters": {"left": torch.empty(0, 4, dtype=torch.bfloat16), "right": torch.ones(2)},
    }
    monkeypatch.setenv("GANGLINE_CHECKPOINT_DIR", str(tmp_path))
    assert save(given, 1, {"loss": 1.5, "accuracy": math.nan})
    assert save(given, 2, {"loss": torch.tensor(2.5).item()}), "waits for the save of step 1"
    monkeypatch.setenv("GANGLINE_RESUME_FROM", str(committed(tmp_path)[0]))
    found = restore()
    assert found is not None
    assert found.state["schedule"] == given["schedule"]
    assert (found.state["worst"], found.state["by_limit"]) == (-math.inf, {math.inf: "none"})
    assert math.isnan(found.state["last"])
    left = found.state["adapters"]["left"]
    assert (left.shape, left.dtype) == ((0, 4), torch.bfloat16)
    into = {"adapters": {"left": torch.empty(0, 4, dtype=torch.bfloat16)}}
    again = restore(into)
    assert again is not None
    assert again.state["adapters"]["left"] is into["adapters"]["left"]
    assert Checkpoint(committed(tmp_path)[0]).record.metrics == {"loss": 1.5}


def test_what_nobody_could_read_is_refused_at_once(tmp_path: Path) -> None:
    announced: list[ShardReady] = []
    saver = saver_of(tmp_path, announced)
    saver.begin(1, state(), {"order": "0" * MAX_MANIFEST_BYTES}, {})
    saver.wait()
    [failed] = saver.results()
    assert "keep long lists of numbers as tensors" in (failed.error or "")
    assert not announced
    assert not list(tmp_path.rglob("rank-*"))


def test_as_many_metrics_are_kept_as_a_message_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_CHECKPOINT_DIR", str(tmp_path))
    many = {f"accuracy of class {number}": 0.5 for number in range(40_000)}
    with pytest.warns(UserWarning, match="first 1,000 of its 40,000 metrics"):
        assert save({}, 1, many)
    assert save({}, 2), "waits for the first"
    found = Checkpoint(committed(tmp_path)[0]).record.metrics
    assert len(found) == METRICS_PER_STEP


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.ones(2).to(torch.float8_e8m0fnu), "cannot save dtype float8_e8m0fnu; view it as"),
        (torch.eye(2).to_sparse(), "cannot save a tensor without plain memory .torch.sparse_coo"),
        (torch.ones(2, device="meta"), "cannot save a tensor without plain memory .meta"),
    ],
)
def test_a_tensor_that_cannot_be_saved_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensor: torch.Tensor, what: str
) -> None:
    monkeypatch.setenv("GANGLINE_CHECKPOINT_DIR", str(tmp_path))
    with pytest.raises(TypeError, match=rf"model\.odd: {what}"):
        save({"model": {"odd": tensor}}, 1)
    with pytest.raises(TypeError, match=r"metrics\.loss: cannot save"):
        save({}, 1, {"loss": torch.ones(2)})  # type: ignore[dict-item]


def test_random_generators_go_on_where_they_were() -> None:
    def draw() -> tuple[float, ...]:
        return (random.gauss(), np.random.standard_normal(), float(torch.randn(1)), random.random())  # noqa: NPY002

    seed_everything(5, rank=1)
    draw()
    before = capture_rng(torch.device("cpu"))
    expected = draw(), draw()
    seed_everything(6, rank=1)
    restore_rng(before, torch.device("cpu"))
    assert (draw(), draw()) == expected


def test_launches_without_an_agent_count_their_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GANGLINE_ATTEMPT", raising=False)
    assert identity(tmp_path).attempt == 1
    (tmp_path / "attempt-0009" / "step-0000000001").mkdir(parents=True)
    assert identity(tmp_path).attempt == 10
    monkeypatch.setenv("GANGLINE_ATTEMPT", "4")
    assert identity(tmp_path).attempt == 4


def test_attempts_are_agreed_on_without_a_group_of_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GANGLINE_ATTEMPT", raising=False)
    (tmp_path / "attempt-0009").mkdir()
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        used = dist.group.WORLD._get_sequence_number_for_group()
        assert identity(tmp_path).attempt == 10
        assert len(dist.distributed_c10d._world.pg_map) == 1
        assert dist.group.WORLD._get_sequence_number_for_group() == used, (
            "another thread may train with it"
        )
    finally:
        dist.destroy_process_group()


def test_a_plan_holds_as_long_as_the_tensors_lie_where_they_lay() -> None:
    model = torch.nn.Linear(3, 2)
    first = fingerprint(model.state_dict())
    assert fingerprint(model.state_dict()) == first, "other Python objects of the same memory"
    with torch.no_grad():
        model.weight += 1
    assert fingerprint(model.state_dict()) == first
    as_columns = {**model.state_dict(), "weight": model.weight.detach().t()}
    assert fingerprint(as_columns) != first
    moved = {**model.state_dict(), "bias": model.bias.detach().clone()}
    assert fingerprint(moved) != first
    assert fingerprint({"w": model.weight, "bias": model.bias}) != first


def test_other_tensors_are_planned_for_anew(tmp_path: Path) -> None:
    saver = saver_of(tmp_path, [])
    for step, seed in ((1, 0), (2, 5)):
        saver.begin(step, state(seed), {}, {})
        saver.wait()
        folder = tmp_path / "attempt-0001" / f"step-{step:010d}"
        assert commit_local(folder, 1)
        filled = {name: torch.zeros_like(tensor) for name, tensor in state().items()}
        Checkpoint(folder).fill(holdings(filled, 0, 1))
        assert torch.equal(filled["a"], state(seed)["a"])


def test_a_shard_is_told_of_when_a_loss_of_power_can_take_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        sync(descriptor)
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        done.append(f"sync {name.removeprefix('.').partition('.')[0]}")

    def replaced(self: Path, target: Path) -> Path:
        done.append(f"name {target.name}")
        return replace(self, target)

    identity = SaverIdentity(tmp_path, "job-1", 1, 0, 1)
    saver = AsyncSaver(identity, lambda _: done.append("told"))
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    saver.begin(1, state(), {}, {})
    saver.wait()
    assert done == [
        f"sync {tmp_path.name}",  # it has a new folder
        "sync attempt-0001",
        "sync rank-00000",
        "name rank-00000.bin",
        "sync step-0000000001",
        "sync rank-00000",
        "name rank-00000.json",
        "sync step-0000000001",
        "told",
    ]
