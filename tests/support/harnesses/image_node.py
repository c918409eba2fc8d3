"""A node that gets images from a registry, for unit tests."""

from __future__ import annotations

import os
from pathlib import Path

from gangline_storage.local import LocalStore
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.images.gang_images import GangImage, GangImages, ImageOptions
from support.builders.images import layer

BIG = layer(("big", os.urandom(3 << 20)))
SMALL = layer(("small", b"1"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class ImageNode:
    """A node's images; each `get` is for another gang."""

    def __init__(
        self,
        folder: Path,
        store: Path,
        budget_bytes: int = 1 << 30,
        allowed: frozenset[str] = frozenset(),
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.auth = folder / "auth.json"
        options = ImageOptions(budget_bytes, auth_file=self.auth, allowed=allowed)
        self.auth.write_text('{"auths": {}}')
        self.images = GangImages(folder, folder / "secrets", LocalStore(store), options, None)

    def get(
        self, image: str, job_id: str = "job", team: str = "nlp", attempt: int = 1
    ) -> GangImage:
        return self.images.get(GangKey(job_id, attempt), team, image)

    def layers(self) -> list[str]:
        return names(self.folder / "images/layers")
