"""Images on nodes: bytes of the registry for a gang of 8 nodes, and what comes of its failures.

`images_registry_sent`: bytes that a registry sends to 8 nodes of one gang that fetch one image of
1 GB at once, over the image's size. `image_cut`: an image whose download is cut at half of its
bytes: bytes sent over its size, and the time until it is there. Times until a problem has its name:
401, 429 for ever, a full disk (a file system of its own), other bytes than the digest says. The
nodes are the agent's own parts (images, copies) in this process, over real sockets. As root.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from harness import Context, Result, scratch

from gangline_storage.local import LocalStore
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.images.gang_images import GangImages, ImageOptions
from gangline_worker.agent.images.problems import ImageProblem
from gangline_worker.agent.peers.layers import LayerCopies
from support.fakes.oci_registry import OciRegistry
from support.harnesses.image_node import ImageNode
from support.harnesses.peers import JOB, PeerNode, gang

NODES, LAYERS = 8, 8
SIZE, QUICK_SIZE = 1 << 30, 64 << 20
SMALL_DISK = "size=64m"  # room for the packed layer alone


def _layers(total: int) -> list[bytes]:
    """Packed layers that compress to nothing less, so many bytes in all."""
    return [_layer(f"file-{number}", total // LAYERS) for number in range(LAYERS)]


def _layer(name: str, size: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o644
        archive.addfile(member, io.BytesIO(os.urandom(size)))
    return gzip.compress(packed.getvalue(), 0)


def _fleet(context: Context, hub: OciRegistry, size: int) -> list[Result]:
    """A gang of 8 nodes that fetch the image at once."""
    with scratch() as folder:
        store = LocalStore(folder / "store")
        nodes = [PeerNode(folder, f"n{number}", store) for number in range(NODES)]
        images = [
            GangImages(node.data, node.data / "secrets", store, ImageOptions(4 << 30), None)
            for node in nodes
        ]
        for node, own in zip(nodes, images, strict=True):
            node.layer = own.packed
        parts = [node.assignment(rank) for rank, node in enumerate(nodes)]
        allocated = gang(1, *parts)
        for node in nodes:
            node.tier.note(allocated)

        def get(at: int) -> None:
            others = LayerCopies(nodes[at].copies, allocated, Event())
            images[at].get(GangKey(JOB, 1), "nlp", f"{hub.host}/tests/large:a", others)

        began = time.perf_counter()
        with ThreadPoolExecutor(NODES) as pool:
            list(pool.map(get, range(NODES)))
        took_s = time.perf_counter() - began
        for node in nodes:
            node.stop()
    note = f"{NODES} nodes, {size / 1e9:.2f} GB, all there after {took_s:.1f} s"
    context.say(note)
    return [context.result("images_registry_sent_over_size", hub.sent / size, "x", note=note)]


def _cut(context: Context, hub: OciRegistry, size: int) -> list[Result]:
    """Each layer's first answer ends at half of its bytes."""
    hub.sent = 0
    hub.cuts.append(1 << 30)  # the image's settings, a blob as well
    hub.cuts.extend([size // LAYERS // 2] * LAYERS)
    with scratch() as folder:
        node = ImageNode(folder / "node", folder / "store", budget_bytes=4 << 30)
        began = time.perf_counter()
        node.get(f"{hub.host}/tests/large:a")
        took_s = time.perf_counter() - began
    return [
        context.result("image_cut_sent_over_size", hub.sent / size, "x"),
        context.result("image_cut_there_s", took_s, "s", note="fetched and unpacked, by one node"),
    ]


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    place = folder / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", SMALL_DISK, "none", str(place)]
    subprocess.run(command, check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def _named_s(node: ImageNode, image: str, name: str) -> float:
    """Seconds until the problem has this name; nothing of the image may be on the node then."""
    began = time.perf_counter()
    try:
        node.get(image)
    except ImageProblem as problem:
        took_s = time.perf_counter() - began
        if problem.name != name or node.layers():
            raise RuntimeError(f"it ended with {problem}; layers: {node.layers()}") from problem
        return took_s
    raise RuntimeError(f"{image} was fetched, which should be: {name}")


def _problems(context: Context) -> list[Result]:
    found = {}
    with scratch() as folder, OciRegistry() as hub:
        image = f"{hub.host}/tests/small:a"
        digest = hub.push("a", [_layer("file", 48 << 20)])
        (layer,) = json.loads(hub.manifests[digest][1])["layers"]

        def node(name: str, at: Path = folder) -> ImageNode:
            return ImageNode(at / name, folder / f"store-{name}")

        hub.user = "robot:secret"
        found["denied"] = _named_s(node("denied"), image, "access denied")
        hub.user, hub.busy, hub.again = None, 1 << 30, ""
        found["busy"] = _named_s(node("busy"), image, "registry away")
        hub.busy = 0
        hub.wrong.add(layer["digest"])
        found["damaged"] = _named_s(node("damaged"), image, "digest mismatch")
        hub.wrong.clear()
        with _small_disk(folder) as small:
            found["full"] = _named_s(node("full", small), image, "disk full")
    return [context.result(f"image_{name}_named_s", took, "s") for name, took in found.items()]


def run(context: Context) -> list[Result]:
    """All nodes of a gang; a cut; problems."""
    wanted = context.repeats(SIZE, QUICK_SIZE)
    with OciRegistry() as hub:
        layers = _layers(wanted)
        hub.push("a", layers)
        size = sum(map(len, layers))
        return [*_fleet(context, hub, size), *_cut(context, hub, size), *_problems(context)]
