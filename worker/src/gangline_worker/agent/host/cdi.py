"""Devices by CDI (Container Device Interface): files in which vendors describe their devices.

A file has a kind, such as nvidia.com/gpu, and says which device nodes, files and variables a
container needs for each device of it. `nvidia-ctk cdi generate` writes such a file. A gang that
runs in an image gets those of its own devices.

Hooks are programs that change a container of an OCI runtime, so they are not run. A sandbox needs
two things that NVIDIA's do, and has them without: links (`create-symlinks`), and folders in which
libraries are found (`update-ldcache`). The others are named in `left_out`.

Format: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

NVIDIA_GPU = "nvidia.com/gpu"
FOLDERS = "/etc/cdi,/var/run/cdi"
"""Where the files are; a device of a later folder takes the place of an earlier one's."""
_REPAIR = "write it again: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
_LARGEST = 4 << 20


class CdiError(Exception):
    """A device cannot be given to a gang; the message names the file, and the way out, `fix`."""

    def __init__(self, problem: str, fix: str = _REPAIR) -> None:
        super().__init__(f"{problem}; {fix}")
        self.problem, self.fix = problem, fix


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file or folder of the node, and where a sandbox has it."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class GivenDevices:
    """All that a sandbox has of the node's devices of a kind.

    `nodes`: device nodes, by where the node and the sandbox have them. `links`: where they lead,
    and where they lie. `libraries`: folders of shared libraries. `left_out`: hooks not run.
    """

    nodes: tuple[tuple[str, str], ...] = ()
    files: tuple[SharedFile, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


_AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\n\x00]*$", max_length=4096)]


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="ignore")


class _DeviceNode(_Part):
    path: _AbsolutePath
    host_path: _AbsolutePath | None = None


class _Mount(_Part):
    host_path: _AbsolutePath
    container_path: _AbsolutePath
    type: str = "bind"
    options: tuple[str, ...] = ()


class _Hook(_Part):
    path: str
    args: tuple[str, ...] = ()


class _Edits(_Part):
    env: tuple[Annotated[str, StringConstraints(pattern=r"^[^=\x00]+=[^\x00]*$")], ...] = ()
    device_nodes: tuple[_DeviceNode, ...] = ()
    mounts: tuple[_Mount, ...] = ()
    hooks: tuple[_Hook, ...] = ()


class _Device(_Part):
    name: str | int
    container_edits: _Edits


class _Spec(_Part):
    cdi_version: Annotated[str, StringConstraints(pattern=r"^[01]\.\d+\.\d+$")]
    kind: str
    devices: tuple[_Device, ...] = Field(min_length=1)
    container_edits: _Edits = _Edits()


def folders_of(setting: str) -> tuple[Path, ...]:
    """The folders that a setting lists by commas."""
    return tuple(Path(each.strip()) for each in setting.split(",") if each.strip())


class Cdi:
    """The files of a node, read again when they change. Any thread may ask."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._read: dict[Path, tuple[tuple[int, int], _Spec]] = {}

    def devices(self, kind: str, wanted: Sequence[Sequence[str]]) -> GivenDevices | None:
        """All for these devices, each by the names that it may have; None: no file has the kind.

        Raises CdiError.
        """
        specs = {path: spec for path, spec in self._specs() if spec.kind == kind}
        if not specs:
            return None
        known: dict[str, tuple[Path, _Device]] = {}
        for path, spec in specs.items():
            for device in spec.devices:
                known[str(device.name)] = path, device
        found: list[tuple[Path, _Edits]] = []
        for names in wanted:
            name = next((each for each in names if each in known), None)
            if name is None:
                raise CdiError(f"{kind}={names[-1]} is in no file: {', '.join(map(str, specs))}")
            path, device = known[name]
            found.append((path, device.container_edits))
        used = dict.fromkeys(path for path, _ in found)
        return _given([*((path, specs[path].container_edits) for path in used), *found])

    def _specs(self) -> Iterator[tuple[Path, _Spec]]:
        for folder in self._folders:
            if folder.is_dir():
                for path in sorted(folder.iterdir()):
                    if path.suffix in {".json", ".yaml"}:
                        yield path, self._spec(path)

    def _spec(self, path: Path) -> _Spec:
        try:
            known = path.stat()
            stands = known.st_mtime_ns, known.st_size
            kept = self._read.get(path)
            if kept is None or kept[0] != stands:
                kept = self._read[path] = stands, _parsed(path, known.st_size)
        except OSError as error:
            raise CdiError(f"{path}: {error.strerror}") from None
        return kept[1]


def _parsed(path: Path, size: int) -> _Spec:
    if size > _LARGEST:
        raise CdiError(f"{path}: larger than {_LARGEST >> 20} MiB")
    text = path.read_bytes()
    try:
        found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        return _Spec.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise CdiError(f"{path}: {place}: {first['msg']}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CdiError(f"{path}: {line}") from None


def _given(edits: Sequence[tuple[Path, _Edits]]) -> GivenDevices:
    """All of these together; of two for the same place the later one counts."""
    nodes: dict[str, str] = {}
    files: dict[str, SharedFile] = {}
    links: dict[str, str] = {}
    environment: dict[str, str] = {}
    libraries: dict[str, None] = {}
    left_out: dict[str, None] = {}
    for path, each in edits:
        environment |= dict(one.split("=", 1) for one in each.env)
        for node in each.device_nodes:
            nodes[node.path] = _device(node.host_path or node.path, path)
        for mount in each.mounts:
            files[mount.container_path] = _file(mount, path)
        for hook in each.hooks:
            if "create-symlinks" in hook.args:
                links |= dict(_link(value, path) for value in _values(hook.args, "--link"))
            elif "update-ldcache" in hook.args:
                libraries |= dict.fromkeys(_values(hook.args, "--folder"))
            else:
                left_out[" ".join(hook.args[1:2]) or hook.path] = None
    return GivenDevices(
        tuple((source, target) for target, source in nodes.items()),
        tuple(files.values()),
        tuple((target, place) for place, target in (_sonames(files.values()) | links).items()),
        environment,
        tuple(libraries),
        tuple(left_out),
    )


def _device(source: str, path: Path) -> str:
    try:
        mode = Path(source).stat().st_mode
    except OSError as error:
        raise CdiError(f"{path}: {source}: {error.strerror}") from None
    if not stat.S_ISCHR(mode) and not stat.S_ISBLK(mode):
        raise CdiError(f"{path}: {source} is not a device")
    return source


def _file(mount: _Mount, path: Path) -> SharedFile:
    if mount.type not in {"bind", "none", ""}:
        problem = f"{path}: a mount of the type {mount.type!r} for {mount.container_path}"
        raise CdiError(problem, "sandboxes take files and folders of the node alone")
    if not Path(mount.host_path).exists():
        raise CdiError(f"{path}: {mount.host_path} is not there")
    return SharedFile(mount.host_path, mount.container_path, "rw" not in mount.options)


def _link(value: str, path: Path) -> tuple[str, str]:
    """Where a link lies, and where it leads."""
    target, _, place = value.partition("::")
    if not place.startswith("/") or not target or "\n" in value:
        raise CdiError(f"{path}: the link {value!r} has no place")
    return place, target


def _values(args: Sequence[str], name: str) -> Iterator[str]:
    """The values of an option, given as `NAME VALUE` or `NAME=VALUE`."""
    for before, value in pairwise(args):
        if before == name:
            yield value
    yield from (each.partition("=")[2] for each in args if each.startswith(f"{name}="))


def _sonames(files: Iterable[SharedFile]) -> dict[str, str]:
    """Links to shared libraries that lie beside them on the node: `libcuda.so.1` and others.

    A loader looks for these names. A container gets them from ldconfig, by the hook.
    """
    libraries: dict[str, dict[str, str]] = {}
    for file in files:
        folder, _, name = file.source.rpartition("/")
        if name.startswith("lib") and ".so" in name:
            libraries.setdefault(folder, {})[name] = file.target
    found: dict[str, str] = {}
    for folder, known in libraries.items():
        with os.scandir(folder or "/") as entries:
            for entry in entries:
                if ".so" in entry.name and entry.is_symlink():
                    where, _, leads = str(Path(entry.path).readlink()).rpartition("/")
                    target = known.get(leads)
                    if target is not None and where in {"", folder}:
                        place, _, name = target.rpartition("/")
                        found[f"{place}/{entry.name}"] = name
    return found
