"""A sandbox with an image has the devices, files and links that a file of CDI names, and no others.

Devices of this machine stand for GPUs.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.host.cdi import NVIDIA_GPU, Cdi
from gangline_worker.agent.isolation.cold_start import Launch, start_cold
from gangline_worker.agent.isolation.groups import GangLimits
from gangline_worker.agent.isolation.isolator import Bounds, Isolator
from gangline_worker.agent.isolation.sandbox import ImageRoot
from support.builders.cdi import LIBRARIES, UUIDS, VERSION, cdi_text, gpu_machine
from support.builders.images import AS_ROOT, layer, member, of_machine

pytestmark = AS_ROOT
GANG = GangKey("job", 1)
OLD = f"{LIBRARIES[1:]}/libcuda.so.1"
"""The image has the library of another driver under this name."""
Run = Callable[[ImageRoot, str], list[str]]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder to which users of teams may pass."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def image(place: Path) -> ImageRoot:
    folder = place / "layers/a/files"
    folder.mkdir(parents=True)
    old = member(OLD, tarfile.SYMTYPE, linkname="libcuda.so.1.0.old")
    own = ("usr/bin/nvidia-smi", b"of the image")
    for packed in (of_machine("/bin/sh", "/bin/cat", "/bin/ls"), layer(old, own)):
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(packed))) as archive:
            archive.extractall(folder, filter="tar")
    return ImageRoot(place / "layers", ("a/files",))


@pytest.fixture
def cdi(place: Path) -> Cdi:
    machine = place / "machine"
    gpu_machine(machine)
    (place / "cdi").mkdir()
    (place / "cdi/nvidia.yaml").write_text(cdi_text(machine), encoding="utf-8")
    return Cdi([place / "cdi"])


@pytest.fixture
def run(place: Path) -> Run:
    data, sockets = place / "data", place / "sockets"
    data.mkdir()
    sockets.mkdir()
    isolator = Isolator(data, sockets, [], Bounds(range(1_900_000_000, 1_900_001_000), 64))
    isolator.settle(None)
    if isolator.no_images is not None:
        pytest.skip(isolator.no_images)

    def lines(root: ImageRoot, program: str) -> list[str]:
        isolator.enter(GANG, [], GangLimits(1 << 30), lambda begin: begin(), root)
        try:
            confinement = isolator.confinement(GANG, isolator.owner("nlp"), 1 << 30)
            command = ("/bin/sh", "-c", program)
            launch = Launch(RankKey(GANG, 0), command, {}, Path("/"), confinement)
            with start_cold(launch) as process:
                said, _ = process.communicate(timeout=60)
            return said.decode().splitlines()
        finally:
            if (pid := isolator.leave(GANG)) is not None:
                os.waitpid(pid, 0)

    return lines


def with_gpus(image: ImageRoot, cdi: Cdi, *gpus: int) -> ImageRoot:
    given = cdi.devices(NVIDIA_GPU, [(UUIDS[gpu], str(gpu)) for gpu in gpus])
    return ImageRoot(image.folder, image.layers, image.workdir, given)


def test_a_gang_has_its_gpu_and_the_driver_s_files(image: ImageRoot, cdi: Cdi, run: Run) -> None:
    lines = run(
        with_gpus(image, cdi, 0),
        f"ls /dev/nvidia*; cat {LIBRARIES}/libcuda.so {LIBRARIES}/libnvidia-ml.so.1; echo;"
        f" cat {LIBRARIES}/libcuda.so.{VERSION}; echo; nvidia-smi;"
        " echo word > /dev/nvidia0 && echo written;"
        " echo x > /usr/bin/nvidia-smi || echo read-only",
    )
    assert lines == [
        "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl",
        "libcuda of the nodelibnvidia-ml of the node",
        "libcuda of the node",
        "two GPUs", "written", "read-only",
    ]  # fmt: skip


def test_a_gang_without_gpus_has_none(image: ImageRoot, cdi: Cdi, run: Run) -> None:
    lines = run(with_gpus(image, cdi), f"ls /dev/nvidia*; ls {LIBRARIES}; cat /usr/bin/nvidia-smi")
    assert not [line for line in lines if line.startswith(("/dev/nvidia", "libnvidia"))]
    assert "of the image" in lines


def test_both_gpus(image: ImageRoot, cdi: Cdi, run: Run) -> None:
    assert run(with_gpus(image, cdi, 0, 1), "ls /dev/nvidia[0-9]") == [
        "/dev/nvidia0",
        "/dev/nvidia1",
    ]
