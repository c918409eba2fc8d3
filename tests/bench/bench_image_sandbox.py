"""A gang's sandbox with an image as its root: how long it takes to make, and to start a rank in it.

`image_sandbox`, `host_sandbox`: from the call until its mounts are made, with and without an image.
`image_rank`: from the start of /bin/true in the image until it is collected. As root, on a node
that isolates by namespaces.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import Context, Result, scratch

from gangline_schemas.isolation import Isolation
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.isolation.cold_start import Launch, start_cold
from gangline_worker.agent.isolation.files import give
from gangline_worker.agent.isolation.groups import GangLimits
from gangline_worker.agent.isolation.isolator import Bounds, Isolator
from gangline_worker.agent.isolation.sandbox import ImageRoot
from support.builders.images import of_machine

GANG = GangKey("bench", 1)
LIMITS = GangLimits(1 << 30)


def _took_ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


class _Node:
    """What an agent has of its machine."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        data, sockets, layer = folder / "data", folder / "sockets", folder / "layers/a/files"
        for made in (data, sockets, layer):
            made.mkdir(parents=True)
        packed = io.BytesIO(gzip.decompress(of_machine("/bin/true")))
        with tarfile.open(fileobj=packed) as archive:
            archive.extractall(layer, filter="tar")
        self.isolator = Isolator(data, sockets, [], Bounds(range(1_900_000_000, 1_900_001_000), 64))
        self.isolator.settle(None)
        if self.isolator.level.strength < Isolation.NAMESPACES.strength:
            raise RuntimeError("this machine does not isolate by namespaces")
        self.root = ImageRoot(folder / "layers", ("a/files",))
        self.owner = self.isolator.owner("nlp")
        self.work = data / "work"
        self.work.mkdir()
        give(self.work, self.owner)

    def enter(self, image: ImageRoot | None) -> None:
        self.isolator.enter(GANG, [self.work], LIMITS, lambda begin: begin(), image)

    def rank(self) -> None:
        confinement = self.isolator.confinement(GANG, self.owner, 1 << 30)
        launch = Launch(RankKey(GANG, 0), ("/bin/true",), {}, self.work, confinement)
        with start_cold(launch) as process:
            if process.wait() != 0:
                raise RuntimeError("the rank did not run")


def run(context: Context) -> list[Result]:
    """Sandboxes with and without an image in turn."""
    taken: dict[str, list[float]] = {"image": [], "host": [], "rank": []}
    with scratch() as folder:
        node = _Node(folder)
        for _ in range(context.repeats(50, 5)):
            taken["host"].append(_took_ms(lambda: node.enter(None)))
            node.isolator.leave(GANG)
            taken["image"].append(_took_ms(lambda: node.enter(node.root)))
            taken["rank"].append(_took_ms(node.rank))
            node.isolator.leave(GANG)
    return [
        context.median("image_sandbox_ms", taken["image"], "ms"),
        context.median("host_sandbox_ms", taken["host"], "ms", note="without an image"),
        context.median("image_rank_ms", taken["rank"], "ms", note="/bin/true, with its end"),
    ]
