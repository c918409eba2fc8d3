"""Does this machine compute, keep and pass on what it is given? Run before its node joins.

`python -m gangline_worker.agent.health.node_check FOLDER LEVEL [GPUS]` ends with status 0 when
it does, else with `UNFIT` and one line for each fault. GPUS are the NVML indexes of the GPUs that
CUDA is to see, in that order: 0,1,... It does not use the bus.

light: a product of matrices on the CPU, and bytes that the disk of FOLDER gives back.
full: also the memory that ranks may lock where there is InfiniBand. The same product by torch on
each GPU. A sum that processes of this node agree on: one process for each GPU over NCCL, or two
over gloo where there are fewer than two GPUs.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gangline_worker.agent.host.resource_limits import current, unfit_limits
from gangline_worker.agent.isolation.rank_exec import tie_to

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNFIT = 3  # the status of a check that found something
SIZE = 256
DISK_BYTES = 4 * 1024 * 1024
PROBE = "check.probe"
_SUM_S = 75.0


def main() -> None:
    """Check, and say what is wrong."""
    folder, level = Path(sys.argv[1]), sys.argv[2]
    gpus = tuple(int(index) for index in filter(None, "".join(sys.argv[3:]).split(",")))
    failures = list(run(folder, full=level == "full", gpus=gpus))
    for failure in failures:
        sys.stdout.write(failure.replace("\n", " ") + "\n")
    sys.exit(UNFIT if failures else 0)


def run(folder: Path, *, full: bool, gpus: tuple[int, ...] = ()) -> Iterator[str]:
    """Clauses about what is wrong; `gpus` are those that must be there."""
    checks: list[tuple[str, Callable[[], Iterator[str]]]] = [
        ("its CPU", cpu_product),
        ("its disk", lambda: disk(folder)),
    ]
    if full:
        checks.append(("its limits", lambda: iter(unfit_limits(current()))))
        checks += [("its GPUs", lambda: gpu_products_apart(gpus)), ("its processes", sums)]
    for what, check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001 -- any failure of a device or a driver is one
            yield f"{what} cannot be checked: {type(error).__name__}: {error}"


def factors() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Two matrices of small whole numbers and their product, which float32 holds exactly."""
    import numpy as np

    numbers = np.random.default_rng(7).integers(-8, 9, (2, SIZE, SIZE))
    return numbers[0], numbers[1], numbers[0] @ numbers[1]


def cpu_product() -> Iterator[str]:
    """By the vector units, against whole numbers."""
    import numpy as np

    left, right, product = factors()
    found = left.astype(np.float32) @ right.astype(np.float32)
    if not np.array_equal(found, product):
        yield "its CPU computes a product of matrices wrongly"


def disk(folder: Path) -> Iterator[str]:
    """Bytes that are written, synced, dropped from the page cache and read again."""
    path = folder / PROBE
    data = random.Random(os.getpid()).randbytes(DISK_BYTES)  # noqa: S311 -- no secret
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b", 0) as file:
            if file.write(data) != len(data):
                raise OSError("it took only a part of what was written")
            os.fsync(file)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").digest()
        path.unlink()
    except OSError as error:
        yield f"its disk does not take data: {error.strerror or error}"
        return
    if digest != hashlib.sha256(data).digest():
        yield "its disk gives back other bytes than were written"


def gpu_products_apart(gpus: tuple[int, ...]) -> Iterator[str]:
    """The same on each GPU, by a process that has ended when `sums` starts others.

    In the compute mode EXCLUSIVE_PROCESS a GPU takes one process at a time.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, tie_to, (os.getpid(),)) as pool:
        yield from pool.submit(_found_on, gpus).result()


def _found_on(gpus: tuple[int, ...]) -> list[str]:
    return list(gpu_products(gpus))


def gpu_products(gpus: tuple[int, ...]) -> Iterator[str]:
    """The product on each GPU that CUDA sees."""
    import torch

    left, right, product = (torch.from_numpy(matrix) for matrix in factors())
    seen = torch.cuda.device_count()
    if seen < len(gpus):
        yield f"CUDA sees {seen} of its {len(gpus)} GPUs"
    for index, name in enumerate(gpus[:seen] or range(seen)):
        device = torch.device("cuda", index)
        found = left.to(device, torch.float32) @ right.to(device, torch.float32)
        if not torch.equal(found.cpu().to(torch.int64), product):
            yield f"GPU {name} computes a product of matrices wrongly"


def sums() -> Iterator[str]:
    """Each of some processes adds its own number, and all must have the same sum."""
    import torch

    gpus = torch.cuda.device_count()
    world_size, backend = (gpus, "nccl") if gpus > 1 else (2, "gloo")
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            spawn.Process(target=_add, args=(rank, world_size, backend, folder, os.getpid()))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_SUM_S)
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
            process.join()
    if any(codes):
        bad = ", ".join(str(rank) for rank, code in enumerate(codes) if code)
        yield f"an all-reduce over {backend} failed in process {bad} of {world_size}"
    if None in codes:
        yield f"an all-reduce over {backend} did not end within {_SUM_S:.0f} s"


def _add(rank: int, world_size: int, backend: str, folder: str, parent: int) -> None:
    tie_to(parent)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=_SUM_S),
    )
    numbers = torch.full((1 << 20,), rank + 1, device=device, dtype=torch.float32)
    dist.all_reduce(numbers)
    right = bool((numbers == world_size * (world_size + 1) // 2).all())
    dist.destroy_process_group()
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
