"""Snapshots of tar shards: found as they were packed, each sample once, damage left out alike."""

from __future__ import annotations

import io
import json
import random
import re
import tarfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from gangline_storage import LocalStore
from gangline_worker.data.__main__ import main
from gangline_worker.data.blocks import LeftOut
from gangline_worker.data.errors import EXIT_DATA_SHARD, DataError, DataShardError
from gangline_worker.data.manifest import TarManifest
from gangline_worker.data.opening import ReadSettings, open_samples, open_tar
from gangline_worker.data.tar import TarData, TarSample
from gangline_worker.data.tar_index import index_tars
from gangline_worker.data.verify import verify
from support.builders.data import flip
from support.builders.tar import entry, pack

BLOCK_BYTES = 4096
LONG = "a folder/" + "x" * 120
Files = dict[str, dict[str, bytes]]


def samples_of(shard: int, count: int, keys: str = "{shard}-{number}") -> Files:
    """Samples of 1 to 5,000 bytes; some have a third file."""
    draw = random.Random(shard)
    found: Files = {}
    for number in range(count):
        files = {"jpg": draw.randbytes(draw.randint(1, 5000)), "cls.txt": b"%d" % number}
        if number % 3 == 0:
            files["json"] = json.dumps({"n": number}).encode()
        found[keys.format(shard=shard, number=number)] = files
    return found


def flat(files: Files) -> list[tuple[str, bytes]]:
    return [(f"{key}.{ext}", data) for key, parts in files.items() for ext, data in parts.items()]


def test_a_manifest_that_names_other_folders_is_refused(tmp_path: Path) -> None:
    """Its shards are opened in the cache under their names, and made there."""
    snapshot(tmp_path / "there", shards=1)
    known = TarManifest.parse((tmp_path / "there/manifest.json").read_bytes(), "manifest")
    (shard,) = known.shards
    for name, index in (
        ("../../a.tar", "../../a.tar.idx"),
        ("/a.tar", "/a.tar.idx"),
        ("a.tar", "../a.tar.idx"),
        ("..", "...idx"),
    ):
        named = shard.samples.model_copy(update={"name": index})
        other = shard.model_copy(update={"name": name, "samples": named})
        with pytest.raises(ValueError, match=r"shards\.0 has a wrong name"):
            TarManifest.of("pictures", block_bytes=known.block_bytes, shards=(other,))


def indexed(folder: Path, corpus: str = "pictures") -> TarManifest:
    quiet: Callable[[str, int], None] = lambda _name, _done: None  # noqa: E731
    return index_tars(
        LocalStore(folder), corpus, block_bytes=BLOCK_BYTES, on_progress=quiet
    ).manifest


def snapshot(folder: Path, shards: int = 4, count: int = 20) -> Files:
    folder.mkdir(exist_ok=True)
    everything: Files = {}
    for shard in range(shards):
        files = samples_of(shard, count + shard)
        pack(folder / f"train-{shard:04d}.tar", flat(files))
        everything |= files
    indexed(folder)
    return everything


def opened(source: Path | str, **settings: object) -> TarData:
    complain = settings.pop("complain", str)
    return open_tar(
        str(source),
        seed=3,
        complain=complain,  # type: ignore[arg-type]
        settings=ReadSettings(**settings),  # type: ignore[arg-type]
    )


def as_files(samples: Iterable[TarSample]) -> Files:
    return {sample.key: dict(sample.files) for sample in samples}


def all_of(data: TarData) -> list[TarSample]:
    return [data.sample(number) for number in range(data.order.n)]


@pytest.mark.parametrize(
    ("style", "keys"),
    [
        (tarfile.USTAR_FORMAT, "{shard}-{number}"),
        (tarfile.GNU_FORMAT, LONG + "/{number}"),
        (tarfile.PAX_FORMAT, LONG + "/\u00e9-{number}"),
    ],
)
def test_samples_are_what_was_packed(tmp_path: Path, style: int, keys: str) -> None:
    files = samples_of(1, 30, keys)
    pack(tmp_path / "a.tar", flat(files), style)
    pack(tmp_path / "b.tar", flat(samples_of(2, 3)), style)
    manifest = indexed(tmp_path)
    assert [shard.samples.count for shard in manifest.shards] == [30, 3]
    found = all_of(opened(tmp_path))
    assert as_files(found) == files | samples_of(2, 3)
    assert [(sample.shard, sample.index) for sample in found[28:32]] == [
        ("a.tar", 28),
        ("a.tar", 29),
        ("b.tar", 0),
        ("b.tar", 1),
    ]


def test_folders_and_files_without_an_extension_are_in_no_sample(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("README", "d/1.jpg", "d/LICENSE", "d/1.cls", "d/.hidden", "d/2.jpg"):
            tar.addfile(entry(name, 2), io.BytesIO(b"ab"))
            tar.addfile(entry(f"{name}-folder", kind=tarfile.DIRTYPE))
    made = index_tars(LocalStore(tmp_path), "c", block_bytes=4096, on_progress=lambda _n, _d: None)
    assert (made.manifest.samples, made.passed_over) == (2, 3)
    assert as_files(all_of(opened(tmp_path))) == {
        "d/1": {"jpg": b"ab", "cls": b"ab"},
        "d/2": {"jpg": b"ab"},
    }


def test_samples_that_were_appended_may_have_a_header_of_their_own(tmp_path: Path) -> None:
    """The library writes its pax_headers before what it appends: behind the sample before."""
    for mode, name in (("w", "a.txt"), ("a", "b.txt")):
        with tarfile.open(tmp_path / "a.tar", mode, pax_headers={"comment": mode}) as archive:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    indexed(tmp_path)
    data = open_tar(str(tmp_path), seed=1)
    found = [data.sample(number) for number in range(2)]
    assert [(one.key, dict(one.files)) for one in found] == [
        ("a", {"txt": b"a.txt"}),
        ("b", {"txt": b"b.txt"}),
    ]


@pytest.mark.parametrize("shuffle_gb", [0.0, 0.0001])
def test_each_sample_comes_once_an_epoch_though_the_world_size_changes(
    tmp_path: Path, shuffle_gb: float
) -> None:
    everything = snapshot(tmp_path)
    data = opened(tmp_path, shuffle_gb=shuffle_gb)
    assert data.order.n == len(everything) == 86
    wanted = [sample.key for sample in data.batch(0, 172, 0, 1)]
    assert sorted(wanted[:86]) == sorted(wanted[86:]) == sorted(everything)
    assert wanted[:86] != wanted[86:]
    draw, position, got = random.Random(5), 0, list[str]()
    while position < 168:
        world = draw.choice([1, 2, 3, 4])
        for rank in range(world):
            got += [sample.key for sample in opened(tmp_path, shuffle_gb=shuffle_gb).batch(
                position, 12, rank, world
            )]  # fmt: skip
        position += 12
    assert got == wanted[:168]


def test_a_store_gives_the_same_through_its_cache(tmp_path: Path) -> None:
    snapshot(tmp_path / "data")
    folder = opened(tmp_path / "data")
    store = opened(f"file://{tmp_path}/data", cache=tmp_path / "cache")
    assert store.batch(0, 86, 0, 1) == folder.batch(0, 86, 0, 1)
    assert len(list((tmp_path / "cache").glob("*/train-*.tar"))) == 4
    assert store.digest() == folder.digest()


def test_a_store_is_asked_for_all_of_a_batch_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot(tmp_path / "data")
    expected = opened(tmp_path / "data").batch(0, 4, 0, 1)
    asked, more = [], threading.Condition()
    whole = LocalStore.get_range

    def late(self: LocalStore, key: str, start: int, length: int) -> bytes:
        with more:
            asked.append(key)
            more.notify_all()
            assert more.wait_for(lambda: len(asked) >= 4, 60), "the next is not asked for"
        return whole(self, key, start, length)

    monkeypatch.setattr(LocalStore, "get_range", late)
    data = opened(f"file://{tmp_path}/data", cache=tmp_path / "cache")
    assert data.batch(0, 4, 0, 1) == expected


def test_a_damaged_block_is_left_out_alike_and_told(tmp_path: Path) -> None:
    everything = snapshot(tmp_path)
    path = tmp_path / "train-0001.tar"
    flip(path, 3 * BLOCK_BYTES + 100)
    told: list[LeftOut] = []
    whole = opened(tmp_path, complain=told.append).batch(0, 84, 0, 1)
    assert [(found.shard, found.block) for found in told] == [("train-0001.tar", 3)]
    halves = [opened(tmp_path) for _ in range(2)]
    parts = [data.batch(0, 84, rank, 2) for rank, data in enumerate(halves)]
    assert [*parts[0], *parts[1]] == whole
    counts = opened(tmp_path)
    assert counts.counts() == {}
    counts.batch(0, 86, 0, 1)
    assert counts.counts()["data_damaged_blocks"] == 1
    assert counts.counts()["data_replaced_samples"] >= 1
    for sample in whole:
        assert dict(sample.files) == everything[sample.key]
    with pytest.raises(DataShardError, match=r"train-0001\.tar block 3 is corrupt"):
        opened(tmp_path, max_damaged_blocks=0).batch(0, 86, 0, 1)


def test_a_damaged_index_ends_it_and_indexing_again_mends_it(tmp_path: Path) -> None:
    snapshot(tmp_path)
    flip(tmp_path / "train-0002.tar.idx", 9)
    [damage] = verify(LocalStore(tmp_path), opened(tmp_path).manifest)
    assert (damage.file, damage.reason) == ("train-0002.tar.idx", "holds other bytes")
    with pytest.raises(DataShardError, match=r"its index train-0002\.tar\.idx holds other bytes"):
        opened(tmp_path).batch(0, 86, 0, 1)
    indexed(tmp_path)
    assert verify(LocalStore(tmp_path), opened(tmp_path).manifest) == []
    opened(tmp_path).batch(0, 86, 0, 1)


def test_what_cannot_be_indexed_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    good = flat(samples_of(1, 5))

    def link(path: Path) -> None:
        with tarfile.open(path, "w") as tar:
            tar.addfile(entry("a.jpg", kind=tarfile.SYMTYPE))

    def packed(path: Path) -> None:
        with tarfile.open(path, "w:gz") as tar:
            tar.addfile(entry("a.jpg", 1), io.BytesIO(b"a"))

    def cut(path: Path) -> None:
        pack(path, good)
        path.write_bytes(path.read_bytes()[:3000])

    def garbled(path: Path) -> None:
        pack(path, [("a.jpg", b"a" * 500), ("b.jpg", b"b" * 500)])
        flip(path, 1024 + 3)

    cases: dict[str, tuple[Callable[[Path], None], str]] = {
        "link": (link, "a.jpg is no plain file"),
        "packed": (packed, "cannot be read as a tar file"),
        "cut": (cut, "cannot be read as a tar file"),
        "garbled": (garbled, "has bytes behind byte 1,024 that are no tar entry"),
        "twice": (lambda path: pack(path, [("a.jpg", b"1"), ("a.jpg", b"2")]), "two files .jpg"),
        "nothing": (lambda path: pack(path, [("README", b"1")]), "has no samples"),
        "none": (lambda _path: None, r"there are no \*\.tar files"),
    }
    for name, (make, message) in cases.items():
        folder = tmp_path / name
        folder.mkdir()
        make(folder / "x.tar")
        before = sorted(folder.iterdir())
        with pytest.raises(DataError, match=message):
            indexed(folder)
        assert sorted(folder.iterdir()) == before, name


def test_a_snapshot_never_changes(tmp_path: Path) -> None:
    snapshot(tmp_path)
    name = opened(tmp_path).manifest.name
    assert re.fullmatch(r"pictures@xxh3-[0-9a-f]{32}", name)
    assert indexed(tmp_path).name == name
    pack(tmp_path / "train-0009.tar", flat(samples_of(9, 2)))
    with pytest.raises(DataError, match=f"it holds the snapshot {name}"):
        indexed(tmp_path)
    assert opened(tmp_path).manifest.name == name
    assert not (tmp_path / "train-0009.tar.idx").exists()


def test_the_command_indexes_shows_and_verifies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "Pictures"
    folder.mkdir()
    pack(folder / "a.tar", flat(samples_of(1, 5)))
    for command in (["index"], ["show"]):
        assert main([*command, str(folder), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["samples"], said["shards"]) == (5, 1)
        assert said["name"].startswith("pictures@xxh3-")
    assert main(["verify", str(folder)]) == 0
    flip(folder / "a.tar", 700)
    assert main(["verify", f"file://{folder}"]) == EXIT_DATA_SHARD
    assert main(["index", str(folder)]) == 2
    assert "never changes" in capsys.readouterr().err


def test_tokens_and_tars_are_told_apart(tmp_path: Path) -> None:
    snapshot(tmp_path)
    with pytest.raises(DataError, match="has tar shards, no tokens"):
        open_samples(str(tmp_path), seq_len=16, seed=1, complain=str)
    (tmp_path / "text").mkdir()
    with pytest.raises(DataError, match="is no snapshot of tar shards"):
        opened(tmp_path / "text")


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "concepts" / "data.md").read_text()
    [example] = re.findall(r"```python\n(.*?open_tar.*?)```", page, re.DOTALL)
    everything = snapshot(tmp_path / "pictures")
    seen: list[str] = []
    names: dict[str, object] = {
        "place": str(tmp_path / "pictures"),
        "rank": 1,
        "world_size": 2,
        "position": 12,
        "train": lambda batch: seen.extend(sample.key for sample in batch),
    }
    exec(example, names)
    assert len(seen) == 6 * 10
    assert names["position"] == 12 + 10 * 12
    assert set(seen) <= set(everything)
