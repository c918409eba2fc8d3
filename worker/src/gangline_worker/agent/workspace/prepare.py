"""Everything a gang needs on this node before its ranks start."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from secrets import token_urlsafe

from pydantic import ValidationError

from gangline_schemas.artifacts import JobArtifacts
from gangline_schemas.events.scheduling import GangAllocated, NodeAssignment
from gangline_schemas.secrets import redact
from gangline_storage.errors import NotFound, StoreError, StoreUnavailable
from gangline_storage.port import ObjectStore
from gangline_worker.agent.checkpoints.integrity import CheckpointDamaged, WrongPath
from gangline_worker.agent.checkpoints.old_copies import delete_unused, note_use
from gangline_worker.agent.checkpoints.share import Share
from gangline_worker.agent.checkpoints.transfer import Checkpoints
from gangline_worker.agent.decide.inputs import OutputsStored, Prepared, PrepareFailed
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.host.addresses import check_addresses
from gangline_worker.agent.host.cdi import CdiError, GivenDevices
from gangline_worker.agent.host.folders import Folders
from gangline_worker.agent.host.named_secrets import SecretMissing, read_secrets
from gangline_worker.agent.host.trees import delete_tree
from gangline_worker.agent.images.gang_images import FOLDER, GangImage, GangImages
from gangline_worker.agent.images.problems import (
    DevicesRefused,
    ImageProblem,
    ImageRefused,
    NoImagesHere,
)
from gangline_worker.agent.images.store import LAYERS
from gangline_worker.agent.isolation.files import Owner, give
from gangline_worker.agent.peers.client import PeerCopies, Round
from gangline_worker.agent.peers.layers import LayerCopies
from gangline_worker.agent.runtime.log_lines import secret_texts
from gangline_worker.agent.runtime.pod_hosts import PodHosts

from .artifacts import ArtifactStore, BadOutput, DamagedInput
from .bundles import BadBundle, fetch_bundle, unpack
from .data_caches import DataCaches
from .environment import IN, OUT, GangPaths, rank_command
from .mlflow import TOKEN, MlflowAccess

_STORE_ATTEMPTS = 3
_RETRY_S = 2.0
_AWAY_S = 45.0
"""So long a store that does not answer is tried again; then the attempt fails, and is restarted."""


@dataclass(frozen=True, slots=True)
class KeptWorkspace:
    """The workspace of a gang, without the facts of its allocation."""

    gang: GangKey
    paths: GangPaths
    tokens: dict[int, str] = field(repr=False)
    secrets: dict[str, str] = field(repr=False)
    owner: Owner | None
    mlflow: dict[str, str] = field(default_factory=dict, repr=False)
    image: GangImage | None = None
    devices: GivenDevices | None = None


@dataclass(frozen=True, slots=True)
class GangWorkspace:
    """The workspace of one gang on this node. `secrets` never leave this process.

    `owner`: the user that its ranks run as, None: the agent's; `peers`: agents that have
    copies too; one thread asks them (`Round`).
    """

    allocation: GangAllocated
    assignment: NodeAssignment
    paths: GangPaths
    tokens: Mapping[int, str] = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)
    owner: Owner | None = None
    peers: Round | None = None
    mlflow: Mapping[str, str] = field(default_factory=dict, repr=False)
    image: GangImage | None = None
    devices: GivenDevices | None = None

    @property
    def redacted(self) -> frozenset[str]:
        """Texts that must not stand in a log line."""
        own = [self.mlflow[TOKEN]] if TOKEN in self.mlflow else []
        return secret_texts([*self.secrets.values(), *self.tokens.values(), *own])

    @property
    def workdir(self) -> str | None:
        """The WORKDIR of its image, where ranks start if the job packs no code."""
        packed = self.allocation.spec.code_bundle
        return None if self.image is None or packed else self.image.folder

    @property
    def shared_with_pod(self) -> tuple[Path, ...]:
        """The folders that the gang's pod mounts, under the same paths."""
        paths = self.paths
        shared = [paths.socket.parent, paths.checkpoints]
        if paths.data_cache is not None:
            shared.append(paths.data_cache)
        if (ref := self.allocation.resume) is not None and ref.job_id != self.allocation.job_id:
            shared.append(paths.checkpoints.parent / ref.job_id)
        return tuple(shared)

    def kept(self, gang: GangKey) -> KeptWorkspace:
        """To be adopted by the next program in this process."""
        return KeptWorkspace(
            gang,
            self.paths,
            dict(self.tokens),
            dict(self.secrets),
            self.owner,
            dict(self.mlflow),
            self.image,
            self.devices,
        )


class Preparer:
    """Makes the workspace for gangs, in the threads of its callers."""

    def __init__(
        self,
        folders: Folders,
        store: ObjectStore,
        checkpoints: Checkpoints,
        owner: Callable[[str], Owner | None],
        peers: PeerCopies | None = None,
        mlflow: MlflowAccess | None = None,
        images: GangImages | None = None,
        pods: PodHosts | None = None,
        *,
        devices: Callable[[NodeAssignment], GivenDevices | None] = lambda _: None,
    ) -> None:
        """`owner` gives the user of a team's ranks, None for the agent's own.

        `devices`: those of a gang in an image, by CDI, if the node has any. Raises CdiError.
        With `pods` a gang's files lie where its pod sees them, and its image is kubelet's concern.
        """
        self._folders = folders
        self._store = store
        self._checkpoints = checkpoints
        self._owner = owner
        self._peers = peers
        self._mlflow = mlflow
        self._images = images
        self._pods = pods
        self._devices = devices
        self._data_caches = DataCaches(folders.data / "data-cache")
        self._stopping = threading.Event()
        (folders.data / "work").mkdir(mode=0o711, exist_ok=True)

    def prepare(
        self, key: GangKey, allocation: GangAllocated, assignment: NodeAssignment
    ) -> tuple[GangWorkspace | None, Prepared | PrepareFailed]:
        """The workspace and Prepared, or why there is none. A store that is away is tried again."""
        damaged: str | None = None
        until = time.monotonic() + _AWAY_S
        for attempt in count(1):
            try:
                return self._prepare(key, allocation, assignment), Prepared(key)
            except ImageProblem as error:
                return None, PrepareFailed(key, user_fault=error.user_fault, message=str(error))
            except (BadBundle, SecretMissing) as error:
                return None, PrepareFailed(key, user_fault=True, message=str(error))
            except RecursionError:
                message = "workdir: its folders lie too deep in each other"
                return None, PrepareFailed(key, user_fault=True, message=message)
            except NotFound as error:
                return None, PrepareFailed(key, user_fault=False, message=f"not found: {error}")
            except (
                CheckpointDamaged, DamagedInput, WrongPath, ValidationError, OSError, StoreError,
            ) as error:  # fmt: skip
                message = f"{type(error).__name__}: {error}"
                damaged = error.key if isinstance(error, CheckpointDamaged) else None
                away = isinstance(error, StoreUnavailable) and time.monotonic() < until
                enough = attempt >= _STORE_ATTEMPTS and not away
                if enough or self._stopping.wait(_RETRY_S):
                    break
        failed = PrepareFailed(key, user_fault=False, message=message, damaged_object=damaged)
        return None, failed

    def store_outputs(self, rank: RankKey, workspace: GangWorkspace) -> OutputsStored:
        """Put the outputs of a job that has ended into the store, or say why they are not there."""
        artifacts = workspace.allocation.spec.artifacts or JobArtifacts()
        store = ArtifactStore(self._store, workspace.allocation.team)
        folder = workspace.paths.code.parent / OUT
        try:
            return OutputsStored(rank, store.put(artifacts, folder, workspace.owner))
        except BadOutput as error:
            return OutputsStored(rank, problem=str(error), user_fault=True)
        except (OSError, StoreError) as error:
            problem = f"its outputs could not be stored: {type(error).__name__}: {error}"
            return OutputsStored(rank, problem=redact(problem, workspace.redacted))

    def adopt(
        self, kept: KeptWorkspace, allocation: GangAllocated, assignment: NodeAssignment
    ) -> GangWorkspace:
        """The workspace that this process had prepared before the agent reloaded."""
        if kept.image is not None and self._images is not None:
            self._images.adopt(kept.gang, kept.image)
        if self._pods is not None:
            self._pods.expect(kept.gang, kept.owner)
        return GangWorkspace(
            allocation,
            assignment,
            kept.paths,
            kept.tokens,
            kept.secrets,
            kept.owner,
            self._round(allocation),
            kept.mlflow,
            kept.image,
            kept.devices,
        )

    def clear(self, key: GangKey) -> None:
        """Delete what was prepared for a gang, except its checkpoints."""
        delete_tree(self._work(key))
        self._temporary(key).unlink(missing_ok=True)
        self.release_image(key)

    def keep_image(self, image: GangImage | None, key: GangKey) -> None:
        """Hold a gang's image for another key too, until `release_image`."""
        if image is not None and self._images is not None:
            self._images.adopt(key, image)

    def release_image(self, key: GangKey) -> None:
        """Hold an image under this key no longer."""
        if self._images is not None:
            self._images.release(key)

    @property
    def layers(self) -> Path:
        """The folder with the layers of images."""
        return self._folders.data / FOLDER / LAYERS

    def make_room(self, here: Iterable[str]) -> None:
        """Delete files that were unused for long; folders of jobs that are `here` are in use."""
        note_use(*(self._folders.data / "checkpoints" / job_id for job_id in here))
        delete_unused(self._folders.data, time.time())

    def stop(self) -> None:
        """Wait for no store and no registry any more."""
        self._stopping.set()
        if self._images is not None:
            self._images.stop()

    def _work(self, key: GangKey) -> Path:
        if self._pods is not None:
            return self._pods.folder(key.job_id) / f"w-{key.attempt}"
        return self._folders.data / "work" / f"{key.job_id}-{key.attempt:04d}"

    def _temporary(self, key: GangKey) -> Path:
        """A short path: programs make sockets there, as the workers of torch's data loaders do."""
        if self._pods is not None:
            return self._pods.folder(key.job_id) / f"t-{key.attempt}"
        name = hashlib.sha256(f"{key.job_id}-{key.attempt}".encode()).hexdigest()[:8]
        return self._folders.sockets / f"t-{name}"

    def _socket(self, key: GangKey) -> Path:
        if self._pods is not None:
            return self._pods.folder(key.job_id) / f"s-{key.attempt}"
        return self._folders.sockets / f"{key.job_id}-{key.attempt}"

    def _prepare(
        self, key: GangKey, allocation: GangAllocated, assignment: NodeAssignment
    ) -> GangWorkspace:
        check_addresses(allocation, assignment)
        spec = allocation.spec
        secrets = read_secrets(self._folders.secrets, allocation.team, spec.secrets)
        self.clear(key)
        image = self._image(key, allocation)
        devices = None if image is None else self._devices_of(image, assignment)
        owner = self._owner(allocation.team)
        if self._pods is not None:
            self._pods.expect(key, owner)
        copies = self._folders.data / "checkpoints"
        starts_from = {allocation.resume.job_id} if allocation.resume is not None else set()
        note_use(*(copies / job_id for job_id in {allocation.job_id, *starts_from}))
        work = self._work(key)
        work.mkdir(mode=0o700)
        for name in ("code", "home", "tmp"):
            (work / name).mkdir(mode=0o700)
        self._temporary(key).symlink_to(work / "tmp")
        if spec.artifacts is not None:
            _make_folders(work, spec.artifacts)
            ArtifactStore(self._store, allocation.team).fetch(spec.artifacts, work / IN)
        if spec.code_bundle is not None:
            bundles = self._folders.data / "bundles"
            packed = fetch_bundle(self._store, allocation.team, spec.code_bundle, bundles)
            unpack(packed, work / "code")
        if self._mlflow is not None:
            self._mlflow.put_authority(work)
        give(work, owner)
        ranks = assignment.ranks
        resume, peers = None, self._round(allocation)
        if (ref := allocation.resume) is not None:
            share = None  # another job: perhaps of another strategy
            if ref.job_id == allocation.job_id:
                share = Share(ranks, allocation.world_size)
            resume = self._checkpoints.fetch(ref, allocation.team, owner, peers, share)
        return GangWorkspace(
            allocation,
            assignment,
            GangPaths(
                code=work / "code",
                home=work / "home",
                temporary=self._temporary(key),
                checkpoints=self._checkpoints.folder(allocation.job_id, owner),
                socket=self._socket(key),
                resume=resume,
                data_cache=self._data_caches.of(allocation.team, owner),
            ),
            tokens={rank: token_urlsafe(24) for rank in ranks},
            secrets=secrets,
            owner=owner,
            peers=peers,
            mlflow=self._mlflow.variables(allocation, work) if self._mlflow is not None else {},
            image=image,
            devices=devices,
        )

    def _image(self, key: GangKey, allocation: GangAllocated) -> GangImage | None:
        """The image that the job names. Raises ImageProblem, StoreError."""
        spec = allocation.spec
        if self._pods is not None:
            if not rank_command(spec):
                wanted = "a pod does not run ENTRYPOINT or CMD of its image; give command or run"
                raise ImageRefused(spec.image or "the image of pods", wanted)
            return None
        if spec.image is None:
            return None
        if self._images is None:
            raise NoImagesHere(spec.image, "its agent runs none")
        others = None
        if self._peers is not None and len(allocation.nodes) > 1:
            others = LayerCopies(self._peers, allocation, self._images.stopping)
        image = self._images.get(key, allocation.team, spec.image, others)
        if not rank_command(spec, image):
            raise ImageRefused(image.name, "it has no ENTRYPOINT or CMD; give command or run")
        return image

    def _devices_of(self, image: GangImage, assignment: NodeAssignment) -> GivenDevices | None:
        try:
            return self._devices(assignment)
        except CdiError as error:
            raise DevicesRefused(image.name, str(error)) from None

    def _round(self, allocation: GangAllocated) -> Round | None:
        """A new look at what other nodes have of the checkpoint; None where none is asked."""
        return self._peers.round(allocation) if self._peers is not None else None


def _make_folders(work: Path, artifacts: JobArtifacts) -> None:
    """The folders of the artifacts that it reads and leaves."""
    (work / IN).mkdir(mode=0o700)
    (work / OUT).mkdir(mode=0o700)
    for name, kind in artifacts.outputs.items():
        if kind == "folder":
            (work / OUT / name).mkdir(mode=0o700)
