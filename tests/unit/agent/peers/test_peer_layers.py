"""The nodes of a gang get the layers of its image from each other; a registry sends each once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gangline_schemas.events.scheduling import GangAllocated
from gangline_storage.local import LocalStore
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.images import store
from gangline_worker.agent.images.gang_images import GangImage, GangImages, ImageOptions
from gangline_worker.agent.images.manifests import Blob
from gangline_worker.agent.peers import layers
from gangline_worker.agent.peers.layers import LayerCopies
from support.builders.images import AS_ROOT, layer
from support.fakes.oci_registry import OciRegistry, digest_of
from support.harnesses.peers import JOB, PeerNode, gang

pytestmark = AS_ROOT

KEY = GangKey(JOB, 1)
LAYERS = [layer((f"file-{number}", os.urandom(1 << 20))) for number in range(6)]
SIZE = sum(map(len, LAYERS))


class Fleet:
    """Nodes of one gang, each with its own images."""

    def __init__(self, folder: Path, nodes: int) -> None:
        store = LocalStore(folder / "store")
        self.nodes = [PeerNode(folder, f"n{number}", store) for number in range(nodes)]
        self.images = [
            GangImages(node.data, node.data / "secrets", store, ImageOptions(1 << 30), None)
            for node in self.nodes
        ]
        for node, images in zip(self.nodes, self.images, strict=True):
            node.layer = images.packed
        self.gang: GangAllocated = gang(
            1, *(node.assignment(rank) for rank, node in enumerate(self.nodes))
        )
        for node in self.nodes:
            node.tier.note(self.gang)

    def get(self, at: int, image: str) -> GangImage:
        copies = LayerCopies(self.nodes[at].copies, self.gang, threading.Event())
        return self.images[at].get(KEY, "nlp", image, copies)

    def get_all(self, image: str) -> list[GangImage]:
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            return list(pool.map(lambda at: self.get(at, image), range(len(self.nodes))))


@pytest.fixture
def hub() -> Iterator[OciRegistry]:
    with OciRegistry() as made:
        made.push("a", LAYERS)
        yield made


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path, 4)
    yield made
    for node in made.nodes:
        node.stop()


def test_a_registry_sends_each_layer_once(hub: OciRegistry, fleet: Fleet) -> None:
    found = fleet.get_all(f"{hub.host}/a:a")
    assert len({image.layers for image in found}) == 1
    assert SIZE <= hub.sent <= 1.1 * SIZE


def test_a_node_begins_with_the_layers_that_others_wait_for(
    hub: OciRegistry, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_AT_A_TIME", 1)
    monkeypatch.setattr(layers, "_PATIENCE_S", 0.0)
    last = Blob(digest=digest_of(LAYERS[-1]), size=len(LAYERS[-1]))
    (at,) = (
        number
        for number, node in enumerate(fleet.nodes)
        if LayerCopies(node.copies, fleet.gang, threading.Event()).waits_for(last)
    )
    fleet.get(at, f"{hub.host}/a:a")
    asked = [path.rpartition("/")[2] for path in hub.requests if "/blobs/" in path]
    own = asked.index(last.digest)
    first = digest_of(LAYERS[0])
    copies = LayerCopies(fleet.nodes[at].copies, fleet.gang, threading.Event())
    waited = copies.waits_for(Blob(digest=first, size=1))
    assert waited or own < asked.index(first)


def test_a_node_that_is_away_is_not_waited_for_long(
    hub: OciRegistry, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(layers, "_AGAIN_S", 0.01)
    assert fleet.get(0, f"{hub.host}/a:a").layers, "the others have not begun"
    fleet.nodes[1].stop()
    assert fleet.get(2, f"{hub.host}/a:a").layers


def test_bytes_of_others_are_compared(hub: OciRegistry, fleet: Fleet) -> None:
    class Wrong:
        def waits_for(self, blob: Blob) -> bool:
            return False

        def follow(self, blob: Blob, path: Path) -> None:
            path.write_bytes(bytes(blob.size))

    assert fleet.images[0].get(KEY, "nlp", f"{hub.host}/a:a", Wrong()).layers
    assert hub.sent >= SIZE


def test_only_layers_of_the_gangs_image_are_given(hub: OciRegistry, fleet: Fleet) -> None:
    fleet.get_all(f"{hub.host}/a:a")
    digest = next(digest for digest, raw in hub.blobs.items() if raw == LAYERS[0])
    assert fleet.images[0].packed(GangKey("other", 1), digest) is None
    file = fleet.images[0].packed(KEY, digest)
    assert file is not None
    with file:
        assert file.read() == LAYERS[0]
