"""The image of a gang: one digest for all attempts of a run, its layers on this node.

The first node of a run that reads the tag writes its digest into the object store. All other nodes
and later attempts use that digest, so a tag that moves changes no run.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from gangline_schemas.image_reference import ImageReference, run_image_key
from gangline_storage.durable import replace_file
from gangline_storage.errors import AlreadyExists, NotFound
from gangline_storage.port import ObjectStore
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.host.named_secrets import IMAGE_LOGINS, SecretMissing, read_secret

from .credentials import BadCredentials, Login, login_for, read_file
from .manifests import Blob, ImageSettings, Manifest, choose, is_list, read_manifest, read_settings
from .problems import ImageDamaged, ImageDenied, ImageProblem, ImageRefused, NoImagesHere
from .registry import Registry, RegistryOptions, host_asked
from .store import FILES, LayerStore, layer_name

FOLDER = "images"
"""Below the data folder of the agent; its layers in LAYERS below that."""
_MANIFESTS = 64
"""So many manifests are kept of each team, those that were used last."""


@dataclass(frozen=True, slots=True)
class GangImage:
    """An image on this node. `layers`: its folders, the lowest first.

    `command`: what it runs where the job names no command; `folder`: its WORKDIR.
    """

    name: str
    layers: tuple[str, ...]
    environment: dict[str, str]
    command: tuple[str, ...]
    folder: str | None

    @property
    def roots(self) -> tuple[str, ...]:
        """The files of each layer, below the folder of all layers."""
        return tuple(f"{name}/{FILES}" for name in self.layers)


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """Settings of the node. `auth_file`: logins for all teams, like Docker's config.json.

    `allowed`: the registries that jobs may name; empty: any.
    """

    budget_bytes: int
    registries: RegistryOptions = field(default_factory=RegistryOptions)
    auth_file: Path | None = None
    allowed: frozenset[str] = frozenset()


class OtherNodes(Protocol):
    """The other nodes of a gang."""

    def waits_for(self, blob: Blob) -> bool:
        """Whether they get this layer from this node: it should be fetched first."""

    def follow(self, blob: Blob, path: Path) -> None:
        """Add to a file what the node that fetches a layer has of it."""


class GangImages:
    """Gets images for gangs, in the threads of its callers.

    `lacking`: why this node cannot run images, None: it can.
    """

    def __init__(
        self,
        data: Path,
        secrets: Path,
        store: ObjectStore,
        options: ImageOptions,
        lacking: str | None,
    ) -> None:
        self._folder = data / FOLDER
        self._secrets = secrets
        self._store = store
        self._options = options
        self._lacking = lacking
        self._stopping = threading.Event()
        self._gangs: dict[GangKey, threading.Event] = {}
        self._layers = None if lacking else LayerStore(self._folder, options.budget_bytes)

    def get(
        self,
        key: GangKey,
        team: str,
        wanted: str,
        others: OtherNodes | None = None,
        *,
        early: bool = False,
        stopping: threading.Event | None = None,
    ) -> GangImage:
        """The image of a gang, which is held until `release`: then it is waited for no longer.

        Raises ImageProblem, StoreError.

        `others`: the gang's other nodes, if it has any.
        `early`: the job waits still; no image of another one is deleted for it.
        `stopping`: once it is set, no registry is waited for.
        """
        if self._layers is None:
            raise NoImagesHere(wanted, self._lacking or "")
        try:
            asked = ImageReference.parse(wanted)
        except ValueError as error:
            raise ImageRefused(wanted, str(error)) from None
        image = asked if asked.digest else self._pinned(team, key.job_id, asked) or asked
        allowed = self._options.allowed
        if allowed and image.registry not in allowed:
            known = ", ".join(sorted(allowed))
            raise ImageDenied(image, f"nodes use only {known} (GANGLINE_IMAGES_REGISTRIES)")
        with self._registry(key, team, image, stopping or threading.Event()) as registry:
            found, manifest, settings = self._documents(registry, team, image)
            if image.digest is None:
                pinned = self._pin(team, key.job_id, found)
                if pinned != found:
                    found, manifest, settings = self._documents(registry, team, pinned)
            names = _names(manifest)
            self._layers.hold(key, names, team)
            try:
                layers = manifest.layers
                get = registry.download if others is None else _with_peers(registry, others)
                if others is not None:
                    layers = tuple(sorted(layers, key=lambda blob: not others.waits_for(blob)))
                share = others is not None
                self._layers.fetch(layers, get, found, team, share=share, early=early)
            except BaseException:
                self._layers.release(key)
                raise
        return GangImage(str(found), names, settings.environment, settings.command, settings.folder)

    def get_early(
        self, key: GangKey, team: str, wanted: str, stopping: threading.Event
    ) -> GangImage:
        """The image of a waiting job: kept until `release` or until a gang needs the space.

        `stopping`: as for `get`. Raises ImageProblem, StoreError.
        """
        image = self.get(key, team, wanted, early=True, stopping=stopping)
        if self._layers is not None:
            self._layers.keep(key)
        return image

    def packed(self, key: GangKey, digest: str) -> BinaryIO | None:
        """A layer of a gang's image for its other nodes: see `LayerStore.packed`."""
        return None if self._layers is None else self._layers.packed(key, digest)

    def adopt(self, key: GangKey, image: GangImage) -> None:
        """Hold what a gang got before the agent reloaded."""
        if self._layers is not None:
            self._layers.hold(key, image.layers)

    def release(self, key: GangKey) -> None:
        """The gang has ended."""
        if (begun := self._gangs.get(key)) is not None:
            begun.set()
        if self._layers is not None:
            self._layers.release(key)

    @property
    def stopping(self) -> threading.Event:
        """Set when nothing is waited for any more."""
        return self._stopping

    def stop(self) -> None:
        """Wait for no registry any more."""
        self._stopping.set()
        for begun in list(self._gangs.values()):
            begun.set()

    @contextlib.contextmanager
    def _registry(
        self, key: GangKey, team: str, image: ImageReference, stopping: threading.Event
    ) -> Iterator[Registry]:
        """The registry of the image, which is waited for until the gang or the agent ends."""
        self._gangs[key] = stopping
        if self._stopping.is_set():
            stopping.set()
        try:
            login = self._login(team, image)
            registry = Registry(image, login, self._options.registries, stopping)
            with contextlib.closing(registry):
                yield registry
        finally:
            self._gangs.pop(key, None)

    def _documents(
        self, registry: Registry, team: str, image: ImageReference
    ) -> tuple[ImageReference, Manifest, ImageSettings]:
        """The image by its digest, its manifest and how it wants to run."""
        if image.digest is not None and (known := self._kept(team, image.digest)) is not None:
            return image, *known
        raw, media_type, digest = registry.manifest(image.wanted)
        found = image.at(digest)
        if is_list(raw, media_type, found):
            raw, media_type, _ = registry.manifest(choose(raw, found).digest)
            if is_list(raw, media_type, found):
                raise ImageRefused(found, "its list of platforms names another list")
        manifest = read_manifest(raw, found)
        config = registry.document(manifest.config)
        settings = read_settings(config, found)
        self._keep(team, digest, raw, config)
        return found, manifest, settings

    def _place(self, team: str, digest: str) -> Path:
        """A team's own: that another may read an image does not let this one."""
        return self._folder / "manifests" / team / f"{digest.removeprefix('sha256:')}.json"

    def _kept(self, team: str, digest: str) -> tuple[Manifest, ImageSettings] | None:
        place = self._place(team, digest)
        try:
            given = json.loads(place.read_text("utf-8"))
            os.utime(place)
            manifest = read_manifest(given["manifest"].encode(), digest)
            return manifest, read_settings(given["config"].encode(), digest)
        except (OSError, ValueError, KeyError, AttributeError, ImageProblem):
            return None

    def _keep(self, team: str, digest: str, manifest: bytes, config: bytes) -> None:
        place = self._place(team, digest)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        texts = {"manifest": manifest.decode(), "config": config.decode()}
        replace_file(place, [json.dumps(texts).encode()])
        with contextlib.suppress(FileNotFoundError):  # another gang of the team deletes them too
            kept = sorted(place.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
            for old in kept[:-_MANIFESTS]:
                old.unlink()

    def _pinned(self, team: str, job_id: str, asked: ImageReference) -> ImageReference | None:
        """The digest of the run, if a node has read the tag. Raises ImageDamaged."""
        try:
            raw = self._store.get(run_image_key(team, job_id))
        except NotFound:
            return None
        try:
            found = ImageReference.parse(json.loads(raw)["image"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            found = asked
        if found.digest is None or found.at("") != asked.at(""):
            raise ImageDamaged(asked, f"its digest in the store ({run_image_key(team, job_id)})")
        return found

    def _pin(self, team: str, job_id: str, found: ImageReference) -> ImageReference:
        """The image of this run: the first node's."""
        text = json.dumps({"image": str(found)}).encode()
        try:
            self._store.put(run_image_key(team, job_id), text, if_absent=True)
        except AlreadyExists:
            return self._pinned(team, job_id, found) or found
        return found

    def _login(self, team: str, image: ImageReference) -> Login | None:
        files: dict[str, str] = {}
        try:
            if (self._secrets / team / IMAGE_LOGINS).exists():
                name = f"the secret {IMAGE_LOGINS} of team {team}"
                files[name] = read_secret(self._secrets, team, IMAGE_LOGINS)
            if (shared := self._options.auth_file) is not None:
                files[str(shared)] = read_file(shared)
            return login_for(host_asked(image.registry, self._options.registries), files)
        except (BadCredentials, SecretMissing) as error:
            raise ImageDenied(image, str(error)) from None


def _names(manifest: Manifest) -> tuple[str, ...]:
    """The folders of its layers, the lowest first.

    Of a layer that comes twice the upper one counts: the lower one is hidden by it, and an overlay
    mount takes no folder twice.
    """
    upper_first = dict.fromkeys(layer_name(blob) for blob in reversed(manifest.layers))
    return tuple(reversed(upper_first))


def _with_peers(registry: Registry, others: OtherNodes) -> Callable[[Blob, Path], None]:
    """Downloads that begin with what other nodes have."""

    def get(blob: Blob, path: Path) -> None:
        others.follow(blob, path)
        try:
            registry.download(blob, path)
        except ImageDamaged:  # perhaps another node's bytes: all of it from the registry
            registry.download(blob, path)

    return get
