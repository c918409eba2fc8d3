"""Unpacks one layer of an image into a folder that overlay mounts can use.

A layer comes from users, so nothing in it is believed. No name is followed as a link, so nothing
lands outside the folder. All files belong to root and are readable by all,
because they belong to no user of this machine; there are no setuid programs. A layer that has
what no image needs, such as a device or a name with `..`, is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gzip
import itertools
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Self, cast

from gangline_storage.durable import NO_SPACE

from .problems import ImageRefused, NodeDiskFull

_WHITEOUT, _OPAQUE, _OF_AUFS = ".wh.", ".wh..wh..opq", ".wh..wh."
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_EXTENSIONS = {
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
}  # fmt: skip
_EXTENSION_LIMIT = 1 << 20
_MEMBERS_LIMIT = 5_000_000
_HEADERS_LIMIT = 4 << 20
"""Between two files of an archive; tarfile keeps what it reads there in memory."""
_DEPTH_LIMIT = 256
_NAME_LIMIT = 4096
_LEAST_BYTES = 4096
"""So much a file or folder takes on a disk at least."""
_CHUNK = 1 << 20
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OF_NODE = {errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors for which no layer is to blame."""
_ROOT: tuple[str, ...] = ()
_OVERLAY = "trusted.overlay" if os.geteuid() == 0 else "user.overlay"
"""The attributes of folders that overlay mounts of this user heed (`isolation.container_root`)."""
_LIBC = ctypes.CDLL(None)


class _Refused(Exception):
    """Why a layer is refused."""


class _Header(tarfile.TarInfo):
    """Refuses headers that would be read into memory whole and are too large for that."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
        """As in `tarfile`."""
        found = super().frombuf(buf, encoding or "utf-8", errors)
        if found.type in _EXTENSIONS and found.size > _EXTENSION_LIMIT:
            raise _Refused("a header of its archive is above 1 MiB")
        return found


def unpack_layer(
    packed: Path,
    target: Path,
    limit_bytes: int,
    image: object,
    grows: Callable[[int], None] = lambda _: None,
) -> int:
    """Unpack into a new folder; returns the bytes that it takes on the disk, where it is by then.

    `grows` is called with each MiB more, before it is there; it may raise NodeDiskFull.
    Raises ImageRefused, NodeDiskFull, and OSError if the node fails.
    """
    target.mkdir(mode=0o755)
    target.chmod(0o755)
    try:
        with _Tree(target, limit_bytes, grows) as tree, _plain(packed) as stream:
            _unpack(tree, _Bounded(stream))
            _sync(tree.root)
    except RecursionError:
        raise ImageRefused(image, "a layer's archive has too many headers for a file") from None
    except (_Refused, tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise ImageRefused(image, f"a layer cannot be unpacked: {error}") from None
    except OSError as error:
        if error.errno in NO_SPACE:
            raise NodeDiskFull(image, "no space for its unpacked layers") from None
        if error.errno in _OF_NODE:
            raise
        raise ImageRefused(image, f"a layer cannot be unpacked: {error}") from None
    return tree.size_bytes


@contextlib.contextmanager
def _plain(packed: Path) -> Iterator[IO[bytes]]:
    """The archive without its compression."""
    with packed.open("rb") as file:
        begins = file.read(4)
        file.seek(0)
        if begins.startswith(_GZIP):
            with gzip.open(file) as stream:
                yield stream  # type: ignore[misc]
        elif begins == _ZSTD:
            import pyarrow as pa  # few images need it: an agent starts without it

            with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream:
                yield stream
        else:
            yield file


class _Bounded:
    """An archive's bytes. Only so many are read without a word from `allow`."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._left_bytes = 0

    def allow(self, more_bytes: int) -> None:
        """So many may be read from now on."""
        self._left_bytes = more_bytes

    def read(self, size: int) -> bytes:
        """As of a file. Raises _Refused."""
        found = self._stream.read(size)
        self._left_bytes -= len(found)
        if self._left_bytes < 0:
            raise _Refused("its archive has too many headers for a file")
        return found


def _unpack(tree: _Tree, stream: _Bounded) -> None:
    stream.allow(_HEADERS_LIMIT)
    file = cast("IO[bytes]", stream)  # of which it only reads
    with tarfile.open(fileobj=file, mode="r|", tarinfo=_Header, bufsize=_CHUNK) as archive:
        for count in itertools.count():
            member = archive.next()
            if member is None:
                break
            tree.add_bytes(max(_LEAST_BYTES, member.size))
            if count > _MEMBERS_LIMIT:
                raise _Refused(f"it has more than {_MEMBERS_LIMIT:,} files")
            if archive.pax_headers and len(str(archive.pax_headers)) > _EXTENSION_LIMIT:
                raise _Refused("the headers for all its files are above 1 MiB")
            stream.allow(member.size + _HEADERS_LIMIT)
            _add(tree, archive, member)
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all


def _add(tree: _Tree, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    parts = _parts(member.name)
    if parts == _ROOT or parts[0] == "dev":  # a sandbox has its own
        return
    *above, name = parts
    folder = tree.folder(tuple(above))
    if name.startswith(_WHITEOUT):
        tree.hide(folder, name)
    elif member.isdir():
        tree.clear_unless_folder(folder, name)
        tree.folder(parts)
        tree.set_mode(parts, member.mode)
    elif member.issym():
        tree.clear(folder, name)
        os.symlink(member.linkname, name, dir_fd=folder)
        _set_time(folder, name, member)
    elif member.islnk():
        tree.link(folder, name, _parts(member.linkname))
    elif member.isreg() or member.type == tarfile.GNUTYPE_SPARSE:
        tree.clear(folder, name)
        _write(archive, member, folder, name)
    elif member.isfifo():
        tree.clear(folder, name)
        os.mkfifo(name, 0o666, dir_fd=folder)
    else:
        raise _Refused(f"{member.name} is a device or another special file")


def _parts(name: str) -> tuple[str, ...]:
    """A name as steps from the root. Raises _Refused."""
    parts = tuple(part for part in name.split("/") if part not in {"", "."})
    if ".." in parts or "\0" in name:
        raise _Refused(f"the name {name!r} leads out of it")
    if len(parts) > _DEPTH_LIMIT or len(name) > _NAME_LIMIT:
        raise _Refused(f"the name {name[:100]!r}... is too long")
    return parts


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: int, name: str) -> None:
    source = archive.extractfile(member)
    if source is None:
        raise _Refused(f"{member.name} has no bytes")
    with os.fdopen(os.open(name, _NEW_FILE, 0o600, dir_fd=folder), "wb") as file:
        shutil.copyfileobj(source, file, _CHUNK)
        os.fchmod(file.fileno(), _file_mode(member.mode))
    _set_time(folder, name, member)


def _file_mode(mode: int) -> int:
    """Without setuid and setgid; who may read or execute it is not for the image's users alone."""
    return (mode & 0o777) | 0o444 | (0o111 if mode & 0o100 else 0)


def _set_time(folder: int, name: str, member: tarfile.TarInfo) -> None:
    """Compiled Python modules are found out of date by the time of their source."""
    with contextlib.suppress(OverflowError, OSError):
        at = (member.mtime, member.mtime)
        os.utime(name, at, dir_fd=folder, follow_symlinks=False)


def _sync(folder: int) -> None:
    if _LIBC.syncfs(folder) != 0:
        raise OSError(errno.EIO, "its files did not reach the disk")


class _Tree:
    """The folder that a layer is unpacked into. No name in it is followed as a link.

    `size_bytes`: what it takes on the disk, about, and at most `limit_bytes`; see `unpack_layer`
    about `grows`.
    """

    def __init__(self, top: Path, limit_bytes: int, grows: Callable[[int], None]) -> None:
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._grows, self._asked_bytes = grows, 0
        self.root = os.open(top, _OPEN_FOLDER)
        self._at, self._open = _ROOT, self.root

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        os.close(self.root)

    def _leave(self) -> None:
        if self._open != self.root:
            os.close(self._open)
        self._at, self._open = _ROOT, self.root

    def add_bytes(self, more_bytes: int) -> None:
        """Something more in it. Raises _Refused."""
        self.size_bytes += more_bytes
        if self.size_bytes > self._limit_bytes:
            limit = f"{self._limit_bytes / 1e9:.3g} GB of files (GANGLINE_IMAGES_GB)"
            raise _Refused(f"it has more than {limit}")
        if self.size_bytes >= self._asked_bytes + _CHUNK:
            self._grows(self.size_bytes)
            self._asked_bytes = self.size_bytes

    def folder(self, parts: tuple[str, ...]) -> int:
        """A handle of a folder, made if it is missing; valid until the next call.

        Raises _Refused when a link or a file is in its way.
        """
        if parts == self._at:
            return self._open
        self._leave()
        here = os.dup(self.root)
        try:
            for name in parts:
                inner = self._step(here, name)
                os.close(here)
                here = inner
        except BaseException:
            os.close(here)
            raise
        if parts == _ROOT:
            os.close(here)
            return self.root
        self._at, self._open = parts, here
        return here

    def _step(self, folder: int, name: str) -> int:
        try:
            return os.open(name, _OPEN_FOLDER, dir_fd=folder)
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            raise _Refused(f"a name goes through {name!r}, which is a link or a file") from None
        self.add_bytes(_LEAST_BYTES)
        os.mkdir(name, 0o755, dir_fd=folder)
        return os.open(name, _OPEN_FOLDER, dir_fd=folder)

    def set_mode(self, parts: tuple[str, ...], mode: int) -> None:
        """The mode of a folder; everybody may look into it."""
        os.fchmod(self.folder(parts), (mode & 0o1777) | 0o755)

    def clear_unless_folder(self, folder: int, name: str) -> None:
        """A folder replaces a file or a link that came earlier in the layer."""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(name, dir_fd=folder)

    def clear(self, folder: int, name: str) -> None:
        """Remove what has this name."""
        try:
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            shutil.rmtree(name, dir_fd=folder)

    def link(self, folder: int, name: str, target: tuple[str, ...]) -> None:
        """A second name of a file of this layer."""
        if not target:
            raise _Refused(f"{name} is a hard link to a folder")
        here = os.dup(self.root)
        try:
            for part in target[:-1]:
                inner = os.open(part, _OPEN_FOLDER, dir_fd=here)
                os.close(here)
                here = inner
            found = os.stat(target[-1], dir_fd=here, follow_symlinks=False)
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                raise _Refused(f"{name} is a hard link to what is not a file")
            same = os.fstat(here).st_ino == os.fstat(folder).st_ino and name == target[-1]
            if not same:
                self.clear(folder, name)
                os.link(target[-1], name, src_dir_fd=here, dst_dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            raise _Refused(f"{name} is a hard link to a file that is not in its layer") from None
        finally:
            os.close(here)

    def hide(self, folder: int, name: str) -> None:
        """A whiteout: hide one name of the layers below, or all of a folder."""
        if name == _OPAQUE:
            os.setxattr(f"/proc/self/fd/{folder}", f"{_OVERLAY}.opaque", b"y")
            return
        hidden = name.removeprefix(_WHITEOUT)
        if name.startswith(_OF_AUFS) or hidden in {"", ".", ".."}:
            return
        with contextlib.suppress(FileExistsError):  # the layer has its own of that name
            os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0), dir_fd=folder)
