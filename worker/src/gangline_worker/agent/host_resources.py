"""Resources that an agent takes of its machine for as long as its process lives.

Its data folder, by a lock; a folder for sockets; isolation, by trying what works; rendezvous ports.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from gangline_schemas.isolation import Isolation

from .checkpoints.old_copies import delete_unused
from .config import AgentSettings
from .host.folders import Folders
from .host.sweep import kill_agent
from .host.trees import delete_tree
from .isolation.isolator import Bounds, Isolator, KeptIsolation
from .rendezvous.ports import PortBlock
from .runtime.containers import ENGINES, end_all
from .runtime.pod_link import clear_pod_folders

_SOCKET_FOLDER_LIMIT = 36


class DataFolderTaken(Exception):
    """Another agent uses the data folder."""


class DataFolderTooLong(Exception):
    """Pods cannot share the folder of sockets: its path must be short, and below the data's."""


@dataclass(frozen=True, slots=True)
class KeptHostResources:
    """The resources that were taken; `lock` and `claim` (of the ports) are descriptors."""

    data: Path
    sockets: Path
    lock: int
    claim: int | None
    ports: tuple[int, ...]
    isolation: KeptIsolation


@dataclass(frozen=True, slots=True)
class HostResources:
    """The resources that were taken; no other process gets them until this one ends."""

    folders: Folders
    lock: int
    isolator: Isolator
    claim: PortBlock | None
    ports: tuple[int, ...]

    def kept(self) -> KeptHostResources:
        """To be adopted by the next program in this process."""
        claim = self.claim.fileno() if self.claim is not None else None
        data, sockets = self.folders.data, self.folders.sockets
        return KeptHostResources(data, sockets, self.lock, claim, self.ports, self.isolator.kept())


def take_host_resources(settings: AgentSettings) -> HostResources:
    """Take them, and end and delete what an earlier agent left there.

    Raises DataFolderTaken, DataFolderTooLong, IsolationMissing and OSError.
    """
    data = settings.data_dir.absolute()
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    (data / "spool").mkdir(exist_ok=True)
    (data / "spool").chmod(0o700)  # users of teams may pass through `data`
    lock = _take_folder(data)
    sockets = _socket_folder(data)
    if settings.ranks_in_pods and sockets.parent != data:
        raise DataFolderTooLong(f"ranks_in_pods: {data} is too long; set GANGLINE_DATA_DIR to less")
    kill_agent(str(sockets))
    if (engine := ENGINES.get(settings.image_runtime)) is not None:
        end_all(engine(data), sockets)
    clear_pod_folders(sockets)
    delete_tree(data / "work")
    delete_unused(data, time.time(), idle=True)
    folders = _folders(settings, data, sockets)
    isolator = _isolator(settings, folders)
    wanted = settings.isolation
    if settings.ranks_in_pods and wanted == "auto":  # pods have the rest
        wanted = Isolation.USER if os.geteuid() == 0 else Isolation.PROCESS
    isolator.settle(wanted if isinstance(wanted, Isolation) else None)
    claim = None if settings.ports else PortBlock.take(settings.node_id, settings.address)
    ports = claim.ports if claim is not None else settings.ports
    return HostResources(folders, lock, isolator, claim, ports)


def adopt_host_resources(settings: AgentSettings, kept: KeptHostResources) -> HostResources:
    """Continue with what this process took before the agent reloaded. Raises OSError."""
    folders = _folders(settings, kept.data, kept.sockets)
    isolator = _isolator(settings, folders)
    isolator.adopt(kept.isolation)
    os.set_inheritable(kept.lock, False)
    claim = None
    if kept.claim is not None:
        os.set_inheritable(kept.claim, False)
        claim = PortBlock(socket.socket(fileno=kept.claim), kept.ports)
    return HostResources(folders, kept.lock, isolator, claim, kept.ports)


def _folders(settings: AgentSettings, data: Path, sockets: Path) -> Folders:
    return Folders(data, sockets, settings.secrets_dir or data / "secrets")


def _isolator(settings: AgentSettings, folders: Folders) -> Isolator:
    hide = [folders.secrets, *([home] if (home := Path.home()) != Path("/") else [])]
    bounds = Bounds(settings.uids, settings.isolation_processes)
    return Isolator(folders.data, folders.sockets, hide, bounds)


def _take_folder(data: Path) -> int:
    """Lock the data folder for this process's life; an earlier agent may be just ending."""
    descriptor = os.open(data / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(50):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.2)
        else:
            return descriptor
    os.close(descriptor)
    raise DataFolderTaken(
        f"another agent uses {data}; stop it, or set GANGLINE_DATA_DIR to a folder of its own"
    )


def _socket_folder(data: Path) -> Path:
    """A folder of this user alone with a path short enough for sockets; the same each time."""
    folder = data / "sockets"
    if len(os.fsencode(folder)) > _SOCKET_FOLDER_LIMIT:
        name = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
        folder = Path("/tmp") / f"gangline-{os.getuid()}-{name}"  # noqa: S108 -- checked below
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    # 0711: teams' users may pass to the sockets that are theirs (isolation/isolator.py).
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) in {0o700, 0o711}
    if not private or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of this user alone; remove it")
    for old in folder.iterdir():
        if old.is_symlink() or not old.is_dir():  # else a pod may have it (runtime/pod_hosts.py)
            old.unlink()
    return folder
