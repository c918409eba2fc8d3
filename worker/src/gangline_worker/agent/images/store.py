"""The layers of images on this node: each is fetched and unpacked once, for all gangs.

A layer's folder is complete or not there. Those that no gang uses are deleted when the budget is
used up, the least recently used first, and last those of waiting jobs. May be used by many threads.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import structlog

from .layers import unpack_layer
from .manifests import Blob
from .problems import ImageDamaged, NodeDiskFull

log = structlog.get_logger(__name__)

_NAME_CHARS = 20  # the folders of 127 layers must fit into one page of mount options
_AT_A_TIME = 3
_SHARED_S = 900.0
FILES = "files"
LAYERS = "layers"


@dataclass(frozen=True, slots=True)
class _Layer:
    digest: str
    size_bytes: int


@dataclass(slots=True)
class _Fetch:
    """A layer on its way; `users` wait for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


class LayerStore:
    """The layers below `folder`, with at most `budget_bytes` of unpacked files."""

    def __init__(self, folder: Path, budget_bytes: int) -> None:
        self.layers, self.downloads = folder / LAYERS, folder / "downloads"
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._fetches: dict[tuple[str, str], _Fetch] = {}
        self._holds: dict[Hashable, frozenset[str]] = {}
        self._kept: dict[Hashable, frozenset[str]] = {}
        self._teams: dict[Hashable, str] = {}
        self._known: dict[str, _Layer] = {}
        self._unpacking: dict[object, int] = {}
        for made in (folder, self.layers, self.downloads):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_stock()

    def hold(self, holder: Hashable, names: Iterable[str], team: str | None = None) -> None:
        """Until `release` these layers stay, once they are there. `team`: as for `fetch`."""
        with self._lock:
            self._holds[holder] = frozenset(names)
            if team is not None:
                self._teams[holder] = team

    def keep(self, holder: Hashable) -> None:
        """It will use what it holds: until `release` this is deleted only for a gang that runs."""
        with self._lock:
            self._kept[holder] = self._holds.pop(holder, frozenset())

    def release(self, holder: Hashable) -> None:
        """It uses no layers any more."""
        with self._lock:
            self._holds.pop(holder, None)
            self._kept.pop(holder, None)
            self._teams.pop(holder, None)

    def packed(self, holder: Hashable, digest: str) -> BinaryIO | None:
        """A held layer as it came, as far as it came; None: it has not begun to come.

        Raises FileNotFoundError when it was unpacked and deleted.
        """
        name = layer_name_of(digest)
        with self._lock:
            wanted, known = name in self._holds.get(holder, ()), name in self._known
            team = self._teams.get(holder, "")  # none: the agent restarted since
        if not wanted:
            return None
        try:
            return self._packed(team, name).open("rb")
        except FileNotFoundError:
            if known:
                raise
            return None

    def fetch(
        self,
        blobs: Sequence[Blob],
        get: Callable[[Blob, Path], None],
        image: object,
        team: str,
        *,
        share: bool = False,
        early: bool = False,
    ) -> None:
        """Fetch the layers that are missing, some at a time. They should be held.

        `get` downloads a blob to a path. A download is of one `team`: another's registry may be
        slow on purpose, or send other bytes. `share`: packed layers stay for a while, for other
        nodes. `early`: what others keep stays. Raises ImageProblem and OSError.
        """
        self._forget_packed(time.time() - _SHARED_S)
        (self.downloads / team).mkdir(mode=0o700, exist_ok=True)

        def bring(blob: Blob) -> None:
            with self._one_fetch(team, layer_name(blob)):
                if not self._is_there(blob, image):
                    self._make_space(blob.size, image, early=early)
                    self._add(blob, get, image, team, share=share)

        with self._lock:
            lacking = sum(blob.size for blob in set(blobs) if layer_name(blob) not in self._known)
        self._make_space(lacking, image, early=early)
        with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="layer") as pool:
            begun = [pool.submit(bring, blob) for blob in blobs]
            try:
                for future in begun:
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        self._make_space(0, image, early=early)

    @contextlib.contextmanager
    def _one_fetch(self, team: str, name: str) -> Iterator[None]:
        """A layer is fetched once at a time for a team."""
        with self._lock:
            fetch = self._fetches.setdefault((team, name), _Fetch())
            fetch.users += 1
        try:
            with fetch.lock:
                yield
        finally:
            with self._lock:
                fetch.users -= 1
                if not fetch.users:
                    del self._fetches[team, name]

    def _packed(self, team: str, name: str) -> Path:
        return self.downloads / team / name

    def _is_there(self, blob: Blob, image: object) -> bool:
        name = layer_name(blob)
        with self._lock:
            known = self._known.get(name)
        if known is None:
            return False
        if known.digest != blob.digest:
            raise ImageDamaged(image, f"{blob.digest} is named like {known.digest}")
        os.utime(self.layers / name)
        return True

    def _add(
        self,
        blob: Blob,
        get: Callable[[Blob, Path], None],
        image: object,
        team: str,
        *,
        share: bool,
    ) -> None:
        name = layer_name(blob)
        packed, made = self._packed(team, name), self.layers / f"{name}.{team}.new"
        left = blob.size - (packed.stat().st_size if packed.exists() else 0)
        if shutil.disk_usage(self.downloads).free < left:
            raise NodeDiskFull(image, f"no space for {left:,} more bytes")
        get(blob, packed)
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(mode=0o755)
        try:
            with self._growing(image) as grows:
                size_bytes = unpack_layer(packed, made / FILES, self._budget_bytes, image, grows)
            (made / "digest").write_text(f"{blob.digest} {size_bytes}\n", "ascii")
            with self._lock:
                if name not in self._known:
                    made.rename(self.layers / name)
                    self._known[name] = _Layer(blob.digest, size_bytes)
        except BaseException:
            packed.unlink(missing_ok=True)
            raise
        finally:
            shutil.rmtree(made, ignore_errors=True)  # another team's was faster, or it failed
        if not share:
            packed.unlink(missing_ok=True)
        log.info("image.layer", digest=blob.digest, size_bytes=size_bytes)

    @contextlib.contextmanager
    def _growing(self, image: object) -> Iterator[Callable[[int], None]]:
        """Takes the size of a layer that is being unpacked, and raises NodeDiskFull.

        A small download may become any size, so all that come together must fit into the budget.
        """
        own = object()

        def grows(size_bytes: int) -> None:
            with self._lock:
                self._unpacking[own] = size_bytes
                used = frozenset[str]().union(*self._holds.values()) & self._known.keys()
                total = sum(self._known[name].size_bytes for name in used)
                total += sum(self._unpacking.values())
            if total > self._budget_bytes:
                raise self._full(image, total)

        try:
            yield grows
        finally:
            with self._lock:
                self._unpacking.pop(own, None)

    def _full(self, image: object, total_bytes: int) -> NodeDiskFull:
        return NodeDiskFull(
            image,
            f"it and the images in use take {total_bytes / 1e9:.3g} GB; this node keeps up to "
            f"{self._budget_bytes / 1e9:.3g} GB of images (GANGLINE_IMAGES_GB)",
        )

    def _forget_packed(self, before_s: float) -> None:
        """Delete packed layers, also parts of them, to which nothing was added since then."""
        with self._lock:
            coming = {name for _, name in self._fetches}
        for packed in self.downloads.glob("*/*"):
            with contextlib.suppress(OSError):
                if packed.name not in coming and packed.stat().st_mtime < before_s:
                    packed.unlink()

    def _make_space(self, more_bytes: int, image: object, *, early: bool) -> None:
        """Delete unused layers while all take more than the budget.

        Raises NodeDiskFull, and deletes none, if that is not enough.
        """
        with self._lock:
            used = frozenset[str]().union(*self._holds.values())
            kept = frozenset[str]().union(*self._kept.values())
            total = more_bytes + sum(layer.size_bytes for layer in self._known.values())
            idle = sorted(set(self._known) - used - kept, key=self._used_at)
            if not early:
                idle += sorted(set(self._known) & kept - used, key=self._used_at)
            least = total - sum(self._known[name].size_bytes for name in idle)
            if least > self._budget_bytes:  # before anything is deleted for it in vain
                raise self._full(image, least)
            for name in idle:
                if total <= self._budget_bytes:
                    break
                total -= self._known.pop(name).size_bytes
                self._delete(name)

    def _used_at(self, name: str) -> float:
        try:
            return (self.layers / name).stat().st_mtime
        except OSError:
            return 0.0

    def _delete(self, name: str) -> None:
        """A layer is never there in part."""
        gone = self.layers / f"{name}.gone"
        shutil.rmtree(gone, ignore_errors=True)
        (self.layers / name).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        log.info("image.layer_deleted", layer=name)

    def _take_stock(self) -> None:
        """Find the layers that an earlier agent left."""
        for folder in self.layers.iterdir():
            try:
                digest, size = (folder / "digest").read_text("ascii").split()
                if layer_name_of(digest) != folder.name:
                    raise ValueError(digest)
                self._known[folder.name] = _Layer(digest, int(size))
            except (OSError, ValueError):
                shutil.rmtree(folder, ignore_errors=True)
        self._forget_packed(time.time() - _SHARED_S)


def layer_name(blob: Blob) -> str:
    """The name of a layer's folder."""
    return layer_name_of(blob.digest)


def layer_name_of(digest: str) -> str:
    """The same, by its digest."""
    return digest.removeprefix("sha256:")[:_NAME_CHARS]
