"""The check of a machine: what it finds, and what it leaves behind."""

from __future__ import annotations

import os
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
