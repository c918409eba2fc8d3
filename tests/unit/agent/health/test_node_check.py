"""The check of a machine: what it finds, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gangline_worker.agent.health import node_check
from gangline_worker.agent.health.node_check import PROBE, UNFIT, factors, run


def test_this_machine_passes_and_nothing_is_left(tmp_path: Path) -> None:
    assert list(run(tmp_path, full=False)) == []
    assert list(tmp_path.iterdir()) == []


def test_float32_holds_the_product_exactly() -> None:
    left, right, product = factors()
    assert np.abs(left).max() == np.abs(right).max() == 8
    assert np.abs(product).max() * 2 < 2**24


def test_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / PROBE).mkdir()
    assert list(run(tmp_path, full=False)) == ["its disk does not take data: Is a directory"]


def test_a_disk_that_gives_back_other_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def flips_a_bit(file: object) -> None:
        sync(file)  # type: ignore[arg-type]
        with (tmp_path / PROBE).open("r+b") as probe:
            first = probe.read(1)
            probe.seek(0)
            probe.write(bytes([first[0] ^ 1]))

    monkeypatch.setattr(os, "fsync", flips_a_bit)
    assert list(run(tmp_path, full=False)) == ["its disk gives back other bytes than were written"]
    assert list(tmp_path.iterdir()) == []


def test_a_cpu_that_computes_wrongly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right, product = factors()
    product[3, 4] += 1
    monkeypatch.setattr(node_check, "factors", lambda: (left, right, product))
    assert list(run(tmp_path, full=False)) == ["its CPU computes a product of matrices wrongly"]


def test_a_check_that_breaks_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> None:
        raise RuntimeError("no driver")

    monkeypatch.setattr(node_check, "factors", breaks)
    assert list(run(tmp_path, full=False)) == ["its CPU cannot be checked: RuntimeError: no driver"]


@pytest.mark.parametrize(
    ("prepare", "status", "said"),
    [
        (lambda _: None, 0, ""),
        (lambda folder: (folder / PROBE).mkdir(), UNFIT, "its disk does not take data"),
    ],
)
def test_its_status_and_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prepare: Callable[[Path], None],
    status: int,
    said: str,
) -> None:
    prepare(tmp_path)
    monkeypatch.setattr("sys.argv", ["node_check", str(tmp_path), "light"])
    with pytest.raises(SystemExit) as ended:
        node_check.main()
    assert ended.value.code == status
    assert capsys.readouterr().out.startswith(said)


def test_cuda_must_see_all_gpus_that_the_node_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert list(node_check.gpu_products((0, 1, 3))) == ["CUDA sees 0 of its 3 GPUs"]
    assert list(node_check.gpu_products(())) == []


EXCLUSIVE = """
# GPUs in the mode EXCLUSIVE_PROCESS: each is a file that one process at a time locks.
import fcntl, os, pathlib, types
import numpy as np

GPUS = pathlib.Path(os.environ["FAKE_GPUS"])
float32, int64, contexts = np.float32, np.int64, {}
cuda = types.SimpleNamespace(device_count=lambda: len(list(GPUS.iterdir())))
from_numpy = lambda values: Tensor(values)
equal = lambda one, other: np.array_equal(one.values, other.values)

def device(kind, index=0):
    return types.SimpleNamespace(kind=kind, index=index)

def enter(where):
    if where.kind == "cuda" and where.index not in contexts:
        contexts[where.index] = handle = os.open(GPUS / str(where.index), os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable") from None

def full(shape, value, *, device, dtype):
    enter(device)
    return Tensor(np.full(shape, value, dtype))

class Tensor:
    def __init__(self, values):
        self.values = values
    def to(self, *changes):
        places = [change for change in changes if isinstance(change, types.SimpleNamespace)]
        for place in places:
            enter(place)
        kinds = [change for change in changes if change not in places]
        return Tensor(self.values.astype(kinds[0]) if kinds else self.values)
    def cpu(self):
        return self
    def all(self):
        return self.values.all()
    def __matmul__(self, other):
        return Tensor(self.values @ other.values)
    def __eq__(self, other):
        return Tensor(self.values == other)
"""
SUMS = """
import os, pathlib, time
import numpy as np

def init_process_group(backend, init_method, rank, world_size, timeout):
    global place, own, size
    place, own, size = pathlib.Path(init_method.removeprefix("file://")).parent, rank, world_size

def all_reduce(tensor):
    np.save(place / f"{own}.part.npy", tensor.values)
    os.rename(place / f"{own}.part.npy", place / f"{own}.npy")
    while len(found := list(place.glob("[0-9].npy"))) < size:
        time.sleep(0.01)
    tensor.values = sum(np.load(file) for file in found)

def destroy_process_group():
    pass
"""


def test_gpus_that_take_one_process_at_a_time_pass(tmp_path: Path) -> None:
    fake, gpus, folder = tmp_path / "fake" / "torch", tmp_path / "gpus", tmp_path / "data"
    for made in (fake, gpus, folder):
        made.mkdir(parents=True)
    (fake / "__init__.py").write_text(EXCLUSIVE)
    (fake / "distributed.py").write_text(SUMS)
    for index in range(2):
        (gpus / str(index)).touch()
    environment = {**os.environ, "PYTHONPATH": str(fake.parent), "FAKE_GPUS": str(gpus)}
    command = ["-m", "gangline_worker.agent.health.node_check", str(folder), "full", "0,1"]
    ended = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode in {0, UNFIT}, ended.stderr  # UNFIT: by the limits of this machine
    assert "all-reduce" not in ended.stdout, "its own first process has the GPUs"
    assert "GPU" not in ended.stdout
