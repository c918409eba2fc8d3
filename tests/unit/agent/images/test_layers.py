"""Layers are unpacked for overlay mounts, and hostile ones reach nothing outside their folder."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from gangline_worker.agent.images import layers
from gangline_worker.agent.images.layers import unpack_layer
from gangline_worker.agent.images.problems import ImageRefused
from support.builders.images import AS_ROOT, layer, member

pytestmark = AS_ROOT

LIMIT = 1 << 20


def unpacked(tmp_path: Path, *entries: str | tuple[str, bytes] | tarfile.TarInfo) -> Path:
    packed = tmp_path / "packed"
    packed.write_bytes(layer(*entries))
    unpack_layer(packed, tmp_path / "layer", LIMIT, "image")
    return tmp_path / "layer"


def test_files_folders_and_links(tmp_path: Path) -> None:
    top = unpacked(
        tmp_path,
        "./usr/",
        ("usr/bin/tool", b"text"),
        member("usr/bin/same", tarfile.LNKTYPE, linkname="/usr/bin/tool"),
        member("bin", tarfile.SYMTYPE, linkname="/usr/bin"),
        member("up", tarfile.SYMTYPE, linkname="../../../etc/passwd"),
        ("deep/in/a", b"1"),
        member("fifo", tarfile.FIFOTYPE),
        member("dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3),
    )
    assert (top / "usr/bin/same").read_bytes() == b"text"
    assert (top / "bin").readlink() == Path("/usr/bin")
    assert (top / "up").readlink() == Path("../../../etc/passwd"), "only sandboxes follow it"
    assert stat.S_ISFIFO((top / "fifo").lstat().st_mode)
    assert not (top / "dev").exists(), "a sandbox has its own"


def test_modes_give_no_rights_and_hide_nothing(tmp_path: Path) -> None:
    top = unpacked(
        tmp_path,
        member("su", mode=0o4755, uid=0),
        member("shadow", mode=0o600, uid=1000),
        member("run", mode=0o700, mtime=1234567),
        member("home", tarfile.DIRTYPE, mode=0o2700),
        member("tmp", tarfile.DIRTYPE, mode=0o1777),
    )
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in top.iterdir()}
    assert modes == {"su": 0o755, "shadow": 0o644, "run": 0o755, "home": 0o755, "tmp": 0o1777}
    assert {path.stat().st_uid for path in top.iterdir()} == {0}
    assert (top / "run").stat().st_mtime == 1234567


def test_whiteouts_are_those_of_overlay(tmp_path: Path) -> None:
    top = unpacked(
        tmp_path, "a/.wh.gone", "b/.wh..wh..opq", ("b/own", b""), ".wh..wh.plnk", "own", ".wh.own"
    )
    gone = (top / "a/gone").lstat()
    assert stat.S_ISCHR(gone.st_mode)
    assert gone.st_rdev == 0
    assert os.getxattr(top / "b", "trusted.overlay.opaque") == b"y"
    assert sorted(path.name for path in top.iterdir()) == ["a", "b", "own"]
    assert (top / "own").is_file(), "a whiteout is for layers below"


def test_what_comes_later_in_a_layer_counts(tmp_path: Path) -> None:
    top = unpacked(
        tmp_path,
        ("a", b"1"), ("a", b"2"),
        ("b/c", b"1"), ("b", b"2"),
        member("d", tarfile.SYMTYPE, linkname="/etc"), "d/", ("d/e", b"3"),
    )  # fmt: skip
    assert [(top / name).read_bytes() for name in ("a", "b", "d/e")] == [b"2", b"2", b"3"]
    assert not Path("/etc/e").exists()


OUTSIDE = "/var/tmp/gangline-outside"

HOSTILE = {
    "up": [("../x", b"1")],
    "up in the middle": [("a/../../x", b"1")],
    "through a link": [member("l", tarfile.SYMTYPE, linkname=OUTSIDE), ("l/x", b"1")],
    "through two links": [
        member("a", tarfile.SYMTYPE, linkname=".."),
        member("b", tarfile.SYMTYPE, linkname="a/.."),
        ("b/x", b"1"),
    ],
    "a hard link out": [member("h", tarfile.LNKTYPE, linkname="../../../etc/passwd")],
    "a hard link through a link": [
        member("l", tarfile.SYMTYPE, linkname="/etc"),
        member("h", tarfile.LNKTYPE, linkname="l/passwd"),
    ],
    "a hard link to the layer": [member("h", tarfile.LNKTYPE, linkname="/")],
    "a hard link to a folder": ["d/", member("h", tarfile.LNKTYPE, linkname="d")],
    "a whiteout through a link": [
        member("l", tarfile.SYMTYPE, linkname=OUTSIDE), "l/.wh..wh..opq",
    ],
    "a device": [member("disk", tarfile.BLKTYPE, devmajor=8, devminor=0)],
    "memory": [member("mem", tarfile.CHRTYPE, devmajor=1, devminor=1)],
    "too many bytes": [("big", bytes(LIMIT + 1))],
    "a long name": [("n" * 300, b"1")],
    "a deep name": [("d/" * 300 + "x", b"1")],
    "many files without bytes": [f"empty-{number}" for number in range(LIMIT // 4096 + 1)],
    "many folders": ["/".join(f"{number}-{deep}" for deep in range(9)) for number in range(30)],
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_layers_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageRefused):
        unpacked(tmp_path, *HOSTILE[name])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer", "packed"]
    assert not Path(OUTSIDE).exists()


def _header_of(size: int) -> bytes:
    huge = member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=size)
    return huge.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)


def _pax(key: str, size: int, kind: bytes = tarfile.XHDTYPE) -> bytes:
    """A header before a file, or of kind XGLTYPE for all that come."""
    return tarfile.TarInfo._create_pax_generic_header({key: "x" * size}, kind, "utf-8")  # type: ignore[attr-defined, no-any-return]


def _for_all(count: int) -> bytes:
    """Files, each after a header of 400 kB for all later ones."""
    file = member("a").tobuf()
    return b"".join(_pax(f"k{number}", 400_000, tarfile.XGLTYPE) + file for number in range(count))


def _sparse(blocks: int) -> bytes:
    """A sparse file whose map does not end."""
    head = bytearray(member("s", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    head[482] = 1
    head[148:156] = b"%06o\0 " % (sum(head[:148]) + 8 * 32 + sum(head[156:512]))
    return bytes(head) + (b"00000000001\0" * 42 + b"\1" + bytes(7)) * blocks


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\x1f\x8bnothing", id="no gzip"),
        pytest.param(layer(("a", bytes(5000)))[:-30], id="cut"),
        pytest.param(gzip.compress(b"x" * 512), id="no tar"),
        pytest.param(gzip.compress(_header_of(1 << 40)), id="a name of a terabyte"),
        pytest.param(gzip.compress(_header_of(-1)), id="a name of less than nothing"),
        pytest.param(gzip.compress(_pax("x", 400_000) * 20), id="large headers"),
        pytest.param(gzip.compress(_for_all(3)), id="headers for all files"),
        pytest.param(gzip.compress(_pax("x", 1) * 1000), id="a chain of headers"),
        pytest.param(gzip.compress(_sparse(20_000)), id="a map without an end"),
        pytest.param(b"\x28\xb5\x2f\xfdnothing", id="no zstd"),
        pytest.param(bytes(range(1, 256)) * 8, id="noise"),
    ],
)
def test_damaged_archives_are_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "packed").write_bytes(raw)
    with pytest.raises(ImageRefused):
        unpack_layer(tmp_path / "packed", tmp_path / "layer", LIMIT, "image")


def test_a_failure_of_the_node_is_not_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers._LIBC, "syncfs", lambda _: -1)
    with pytest.raises(OSError, match="did not reach the disk"):
        unpacked(tmp_path, ("a", b"1"))


@pytest.mark.parametrize("kind", ["plain", "zstd", "two gzip members"])
def test_compressions(tmp_path: Path, kind: str) -> None:
    plain = gzip.decompress(layer(("a", b"text" * 100)))
    zstd = pa.Codec("zstd")
    raw = {
        "plain": plain,
        "zstd": zstd.compress(plain, asbytes=True),
        "two gzip members": gzip.compress(plain[:700]) + gzip.compress(plain[700:]),
    }[kind]
    (tmp_path / "packed").write_bytes(raw)
    assert unpack_layer(tmp_path / "packed", tmp_path / "layer", LIMIT, "image") == 4096
    assert (tmp_path / "layer/a").read_bytes() == b"text" * 100
