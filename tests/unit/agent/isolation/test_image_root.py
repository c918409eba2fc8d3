"""The files of a node's GPU driver that images are shown."""

from __future__ import annotations

from pathlib import Path

from gangline_worker.agent.isolation.image_root import driver_files


def test_the_drivers_libraries_and_program(tmp_path: Path) -> None:
    node = f"{tmp_path}/"
    libraries = tmp_path / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.550.54", "libcudart.so.12", "libcuda.a"):
        (libraries / name).touch()
    (tmp_path / "usr/bin/nvidia-smi").touch()
    assert driver_files(node) == {}, "a node without GPUs"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert driver_files(node) == {
        "/usr/local/nvidia/lib64/libcuda.so.1": str(libraries / "libcuda.so.1"),
        "/usr/local/nvidia/lib64/libnvidia-ml.so.550.54": str(libraries / "libnvidia-ml.so.550.54"),
        "/usr/local/nvidia/bin/nvidia-smi": str(tmp_path / "usr/bin/nvidia-smi"),
    }
