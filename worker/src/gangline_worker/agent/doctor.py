"""`python -m gangline_worker.agent.doctor`: whether this machine can be a node, as JSON.

Each check says what it found and, if something is wrong, what to do. `gangline doctor --node` shows
them. Nothing on the machine is changed.
"""

from __future__ import annotations

import argparse
import email.utils
import http.client
import json
import os
import resource
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from urllib.parse import SplitResult, urlsplit

import psutil
import structlog

from gangline_schemas.isolation import Isolation
from gangline_service.loopback import is_loopback

from .config import AgentSettings
from .health.fitness import FitnessLimits
from .host.addresses import default_address
from .host.cdi import FOLDERS, NVIDIA_GPU, Cdi, CdiError, folders_of
from .host.inventory import DriverUnusable, find_gpus, gpu_names, has_nvidia, node_name
from .host.resource_limits import current, unfit_limits
from .isolation.files import Owner
from .isolation.isolator import Bounds, Isolator
from .rendezvous.ports import FIRST_PORT, LAST_PORT, PortBlock
from .runtime.containers import ENGINES
from .runtime.engine import Engine

State = Literal["ok", "warning", "failed"]
_GB = 1e9
_PYTHON = (3, 11)
_LEAST_FILES = 4096
_GOOD_FILES = 65_536
_SHM = "/dev/shm"  # noqa: S108 -- shared memory, not a file of ours
_LEAST_SHM = 1 << 30
_IMAGE_RUNTIME = "GANGLINE_IMAGE_RUNTIME"
_CDI_FOLDERS = "GANGLINE_CDI_FOLDERS"
_ANSWER_S = 5.0
_DATE_S = 0.5
"""A Date header names a second: its middle is at most so far off."""
_LET_THROUGH = (
    "teams can reach each other's processes: allow root to make namespaces here, and let other "
    "users pass through the folders above (chmod o+x), or choose another --dir"
)
_UIDS = range(1_900_000_000, 1_900_000_002)


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `fix` says what to do, unless it is ok."""

    name: str
    state: State
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The node to check: its folder, its address, and the gateway that it will join."""

    folder: Path
    address: str | None = None
    server: str | None = None
    ca: Path | None = None
    slots: int | None = None


def examine(machine: Machine) -> Iterator[Check]:
    """All checks, in the order in which they are shown."""
    yield _python()
    isolator = _isolator(machine.folder)
    yield from _isolation(isolator)
    for name, engine in ENGINES.items():
        wanted = os.environ.get(_IMAGE_RUNTIME) == name
        if wanted or (isolator.no_images is not None and shutil.which(name)):
            yield _engine(engine, machine.folder, isolator.trial_owner, wanted=wanted)
    yield _disk(machine.folder)
    yield _shm(shutil.disk_usage(_SHM).total if Path(_SHM).is_dir() else 0)
    yield _memlock()
    yield _files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield _gpus(machine.slots)
    yield from _cdi(_indexes(machine.slots), _cdi_folders())
    yield _address(machine)
    yield _ports(machine)
    if machine.server is not None:
        yield _server(machine, time.time)


def _python() -> Check:
    shown = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _PYTHON:
        return Check("Python", "failed", shown, "install Python 3.11 or newer")
    return Check("Python", "ok", f"{shown}, {sys.executable}")


def _isolator(folder: Path) -> Isolator:
    """As the agent would make it; it has found its level."""
    with TemporaryDirectory(prefix="gangline-doctor-", dir=_existing(folder)) as place:
        data = Path(place)
        (data / "sockets").mkdir(mode=0o700)
        isolator = Isolator(data, data / "sockets", (), Bounds(_UIDS, 8192))
        isolator.find(None)
    return isolator


def _isolation(isolator: Isolator) -> Iterator[Check]:
    """The level that the agent would take, and whether images run."""
    lacks = isolator.lacks
    level, namespaces = isolator.level, lacks.get(Isolation.NAMESPACES)
    if namespaces is not None:
        yield Check(
            "namespaces", "warning", f"ranks are isolated by {level.value}: {namespaces}",
            _LET_THROUGH if os.geteuid() == 0 else
            "run the agent as root (gangline node join --systemd), else teams can reach each "
            "other's processes",
        )  # fmt: skip
    else:
        images = isolator.no_images
        said = "images run" if images is None else f"no images: {images}"
        fix = "" if images is None else "jobs with `image` need a kernel with overlayfs"
        yield Check(
            "namespaces", "ok" if images is None else "warning", f"teams are isolated; {said}", fix
        )
    groups = lacks.get(Isolation.LIMITS)
    if groups is None:
        yield Check("cgroups", "ok", "gangs get limits of memory, CPUs and processes")
    else:
        yield Check(
            "cgroups", "warning", f"gangs get no limits of memory: {groups}",
            "use control groups of version 2, and start the agent by systemd with "
            "Delegate=cpu memory pids (gangline node join --systemd)",
        )  # fmt: skip


def _engine(kind: type[Engine], folder: Path, owner: Owner | None, *, wanted: bool) -> Check:
    """Whether this engine runs images here; `wanted`: the agent is set so."""
    with TemporaryDirectory(prefix="gangline-doctor-", dir=_existing(folder)) as name:
        Path(name).chmod(0o711)
        place = Path(name) / "root"
        place.mkdir()
        engine = kind(place)
        lacking = engine.lacking(owner)
    if lacking is not None:
        fix = f"see Nodes where {engine.title} runs images (docs/guides/images.md)"
        return Check(
            engine.program, "failed" if wanted else "warning", f"no images: {lacking}", fix
        )
    said = "images run" if engine.limits else "images run, without limits of memory and CPUs"
    return Check(
        engine.program, "ok", said if wanted else f"{said} if {_IMAGE_RUNTIME}={engine.program}"
    )


def _disk(folder: Path) -> Check:
    place = _existing(folder)
    free_gb = shutil.disk_usage(place).free / _GB
    least_gb = FitnessLimits().disk_free_gb
    images_gb = AgentSettings.model_fields["images_gb"].default
    said = f"{free_gb:.0f} GB free at {place}"
    if free_gb < least_gb:
        return Check("disk", "failed", said, f"free {least_gb:g} GB, or choose another --dir")
    if free_gb < images_gb:
        fix = f"images may take {images_gb:g} GB: free it, or set images_gb lower"
        return Check("disk", "warning", said, fix)
    return Check("disk", "ok", said)


def _shm(size: int) -> Check:
    said = f"{size / _GB:.1f} GB"
    if size < _LEAST_SHM:
        fix = "NCCL and data loaders need it: mount -o remount,size=50% /dev/shm"
        return Check(_SHM, "warning", said, fix)
    return Check(_SHM, "ok", said)


def _memlock() -> Check:
    limits = current()
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if hard == resource.RLIM_INFINITY or os.geteuid() == 0:
        return Check("memlock", "ok", "all memory may be locked")
    fix = "InfiniBand needs all: set LimitMEMLOCK=infinity in the agent's unit"
    return Check("memlock", "failed" if unfit_limits(limits) else "warning", limits.lockable, fix)


def _files(most: int) -> Check:
    said = f"at most {most} for each process"
    fix = "set LimitNOFILE=1048576 in the agent's unit, or nofile in /etc/security/limits.conf"
    if most < _LEAST_FILES:
        return Check("open files", "failed", said, fix)
    return Check("open files", "ok" if most >= _GOOD_FILES else "warning", said,
                 "" if most >= _GOOD_FILES else fix)  # fmt: skip


def _gpus(slots: int | None) -> Check:
    if slots is not None:
        return Check("GPUs", "ok", f"not used: the node offers {slots} CPU slots")
    try:
        found = find_gpus()
    except DriverUnusable as error:
        return Check("GPUs", "failed", str(error), "reinstall the driver, or give --slots")
    if found:
        models = ", ".join(sorted({gpu.model for gpu in found}))
        return Check("GPUs", "ok", f"{len(found)} of {models}")
    if any(Path("/proc/driver/nvidia/gpus").glob("*")) or has_nvidia():
        fix = "install the NVIDIA driver (nvidia-smi must list the GPUs), or give --slots"
        return Check("GPUs", "failed", "there is an NVIDIA device and no driver", fix)
    return Check("GPUs", "ok", "none; the node offers a CPU slot for each CPU")


def _indexes(slots: int | None) -> tuple[int, ...]:
    """The GPUs that the node offers; () where they cannot be used."""
    if slots is not None:
        return ()
    try:
        return tuple(gpu.index for gpu in find_gpus())
    except DriverUnusable:
        return ()


def _cdi_folders() -> tuple[Path, ...]:
    """Where the agent looks for files of CDI, if it has this process's environment."""
    return folders_of(os.environ.get(_CDI_FOLDERS, FOLDERS))


def _cdi(gpus: Sequence[int], folders: Sequence[Path]) -> Iterator[Check]:
    """Whether gangs in images get their GPUs by CDI. Nothing on a node without GPUs."""
    if not gpus:
        return
    try:
        given = Cdi(folders).devices(NVIDIA_GPU, [gpu_names(index) for index in gpus])
    except CdiError as error:
        yield Check("CDI", "failed", error.problem, error.fix)
        return
    if given is None:
        said = f"no file for {NVIDIA_GPU}: a gang in an image gets all GPUs of the node"
    else:
        said = f"a gang in an image gets its own of {len(gpus)} GPUs"
        if given.left_out:
            said += f"; hooks that are not run: {', '.join(given.left_out)}"
    yield Check("CDI", "ok", said)


def address_of(machine: Machine) -> str:
    """Where other nodes reach this one: as given, else where the route to the gateway begins."""
    if machine.address is not None:
        return machine.address
    parts = _parts(machine.server) if machine.server is not None else None
    if parts is None or parts.hostname is None:
        return default_address()
    try:
        family, *_, place = socket.getaddrinfo(
            parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return default_address()


def _address(machine: Machine) -> Check:
    address = address_of(machine)
    fix = "give --address with an address of this machine that the other nodes reach"
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return Check("address", "failed", f"{address}: {error.strerror}", fix)
    host = _parts(machine.server).hostname if machine.server is not None else None
    if is_loopback(address) and host is not None and not is_loopback(host):
        return Check("address", "failed", f"{address} is this machine's alone", fix)
    if is_loopback(address) and host is None:
        return Check("address", "warning", f"{address} is this machine's alone", fix)
    return Check("address", "ok", address)


def _ports(machine: Machine) -> Check:
    try:
        block = PortBlock.take("doctor", address_of(machine))
    except OSError as error:
        fix = f"free ports between {FIRST_PORT} and {LAST_PORT}, or set rendezvous_ports"
        return Check("ports", "failed", str(error), fix)
    ports = block.ports
    block.close()
    return Check(
        "ports", "ok",
        f"{len(ports)} from {ports[0]} on; other nodes must reach {FIRST_PORT}-{LAST_PORT}",
    )  # fmt: skip


def _server(machine: Machine, clock: Callable[[], float]) -> Check:
    """The gateway answers, and its clock agrees with this one."""
    assert machine.server is not None  # noqa: S101 -- for mypy
    try:
        before = clock()
        date = _date_of(_parts(machine.server), machine.ca)
        after = clock()
    except ssl.SSLError as error:
        fix = "name the authority of its certificate: --ca FILE"
        return Check("server", "failed", f"{machine.server}: {error.reason}", fix)
    except (OSError, ValueError, http.client.HTTPException) as error:
        fix = "check the URL, the gateway and the firewall between"
        return Check("server", "failed", f"{machine.server}: {error}", fix)
    if date is None:
        return Check("clock", "warning", "the server says no time", "is it a Gangline gateway?")
    off = (before + after) / 2 - (date + _DATE_S)
    doubt = (after - before) / 2 + _DATE_S
    sure = max(0.0, abs(off) - doubt)
    most = FitnessLimits().clock_error_s
    if sure > most:
        ahead = "ahead of" if off > 0 else "behind"
        said = f"at least {sure:.1f} s {ahead} the server's"
        return Check("clock", "failed", said, "run chrony or systemd-timesyncd on both machines")
    return Check("clock", "ok", "agrees with the server's to about a second")


def _parts(server: str) -> SplitResult:
    return urlsplit(server)


def _date_of(server: SplitResult, ca: Path | None) -> float | None:
    """The time of an answer, in seconds of Unix. Raises OSError and HTTPException."""
    host = server.hostname or ""
    if server.scheme == "https":
        context = ssl.create_default_context(cafile=ca)
        link: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, server.port, timeout=_ANSWER_S, context=context
        )
    else:
        link = http.client.HTTPConnection(host, server.port, timeout=_ANSWER_S)
    try:
        link.request("GET", "/v1/version")
        said = link.getresponse().getheader("date")
    finally:
        link.close()
    found = email.utils.parsedate_to_datetime(said) if said else None
    return None if found is None else found.timestamp()


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def _arguments() -> Machine:
    parser = argparse.ArgumentParser(prog="python -m gangline_worker.agent.doctor")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--address")
    parser.add_argument("--server")
    parser.add_argument("--ca", type=Path)
    parser.add_argument("--slots", type=int)
    return Machine(**vars(parser.parse_args()))


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    psutil.Process().nice(5)  # a trial of what jobs use must not disturb them
    machine = _arguments()
    checks = [asdict(check) for check in examine(machine)]
    found = {"node_id": node_name(socket.gethostname()), "address": address_of(machine)}
    sys.stdout.write(json.dumps({**found, "checks": checks}) + "\n")
