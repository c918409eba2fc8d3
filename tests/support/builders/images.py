"""Layers of images for tests, and a small root that runs this machine's shell or Python."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="agents that run images are root")


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode = kind, 0o755 if kind == tarfile.DIRTYPE else 0o644
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def layer(*entries: str | tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    """A packed layer: names of folders or empty files, names with bytes, or whole members."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry, io.BytesIO(bytes(entry.size)))
            elif isinstance(entry, str):
                kind = tarfile.DIRTYPE if entry.endswith("/") else tarfile.REGTYPE
                archive.addfile(member(entry.rstrip("/"), kind))
            else:
                name, data = entry
                archive.addfile(member(name, size=len(data)), io.BytesIO(data))
    return gzip.compress(packed.getvalue(), 1)


def of_machine(*programs: str) -> bytes:
    """A layer with these programs of this machine, and the libraries that they load."""
    return _packed(tuple(sorted({*programs, *_libraries(programs)})))


def _libraries(programs: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for program in programs:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
        found.update(word for word in listed.stdout.split() if word.startswith("/"))
    return found


@cache
def _packed(paths: tuple[str, ...]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in paths:
            archive.add(Path(path).resolve(), arcname=path.lstrip("/"), recursive=False)
    return gzip.compress(packed.getvalue(), 1)


_NOT_NEEDED = {"test", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "__pycache__"}


def of_python() -> bytes:
    """A layer with this Python and its standard library, as the program `python`."""
    library = Path(os.__file__).parent
    executable = Path(sys.executable).resolve()
    files = [
        path
        for path in library.rglob("*")
        if path.is_file() and not _NOT_NEEDED & {*path.relative_to(library).parts}
    ]
    modules = [str(path) for path in files if path.suffix == ".so"]
    needed = _libraries([str(executable), *modules])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        link = member("usr/local/bin/python", tarfile.SYMTYPE, linkname=str(executable))
        archive.addfile(link)
        for path in sorted({str(executable), *needed, *map(str, files)}):
            archive.add(Path(path).resolve(), arcname=path.lstrip("/"), recursive=False)
    return gzip.compress(packed.getvalue(), 1)
