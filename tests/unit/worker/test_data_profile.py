"""Profiles of snapshots: made with them, of all kinds and places, bounded, and kept with them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from gangline_schemas.profile import CategoryColumn, NumberColumn
from gangline_storage import LocalStore
from gangline_worker.data.__main__ import main
from gangline_worker.data.cache import CacheFolder
from gangline_worker.data.manifest import Manifest
from gangline_worker.data.prepare import prepare
from gangline_worker.data.profile import SnapshotProfile, make_profile
from gangline_worker.data.source import folder_snapshot, store_snapshot
from gangline_worker.data.tokenizer import ByteTokenizer
from support.builders.data import BLOCK_BYTES, flip, quiet, small_sources
from support.builders.tar import pack

TEXTS = [b"ab" * 300, b"c" * 7, b"abc" * 500]
"""2,107 bytes and three ends: shards of 512 tokens, blocks of 128."""


def tokens(folder: Path, texts: list[bytes] = TEXTS) -> tuple[Path, Manifest]:
    """A snapshot of these documents."""
    inputs = folder / "in"
    inputs.mkdir(parents=True)
    for number, text in enumerate(texts):
        (inputs / f"{number}.txt").write_bytes(text)
    out = folder / "out"
    return out, prepare(out, small_sources(sorted(inputs.iterdir()), out), ByteTokenizer(), quiet)


def columns(of: SnapshotProfile) -> dict[str, NumberColumn | CategoryColumn]:
    return {one.name: one for one in of.profile.columns if one.kind != "text"}


def test_tokens_have_lengths_of_documents_and_shares_of_tokens(tmp_path: Path) -> None:
    out, manifest = tokens(tmp_path)
    found = make_profile(folder_snapshot(out), None)
    assert (found.snapshot, found.profile.rows, found.profile.share) == (manifest.name, 3, 1.0)
    lengths, shares = columns(found)["document_tokens"], columns(found)["token"]
    assert isinstance(lengths, NumberColumn)
    assert lengths.sketch.mean == pytest.approx((601 + 8 + 1501) / 3)
    assert (lengths.sketch.quantiles[0], lengths.sketch.quantiles[-1]) == (8.0, 1501.0)
    assert isinstance(shares, CategoryColumn)
    assert shares.counts == {"97": 800, "98": 800, "99": 507, "0": 3}


def test_a_store_gives_the_same_profile_and_a_large_snapshot_a_sample(tmp_path: Path) -> None:
    out, manifest = tokens(tmp_path)
    whole = make_profile(folder_snapshot(out), None)
    stored = store_snapshot(LocalStore(out), CacheFolder(tmp_path / "cache", 1 << 30))
    assert make_profile(stored, None) == whole
    part = make_profile(folder_snapshot(out), None, most_blocks=4)
    assert part.profile.share == pytest.approx(4 * 128 / manifest.tokens)
    assert part.profile.rows == 3
    shares = columns(part)["token"]
    assert isinstance(shares, CategoryColumn)
    read = b"".join(text + b"\0" for text in TEXTS)
    starts = [number * 17 // 4 * 128 for number in range(4)]
    values, times = np.unique(
        np.frombuffer(b"".join(read[at : at + 128] for at in starts), np.uint8), return_counts=True
    )
    assert shares.counts == {str(v): int(n) for v, n in zip(values, times, strict=True)}


def test_a_damaged_block_is_left_out_of_the_profile(tmp_path: Path) -> None:
    out, manifest = tokens(tmp_path)
    flip(out / manifest.shards[1].name, at=BLOCK_BYTES + 3)
    found = make_profile(folder_snapshot(out), None)
    assert found.profile.share == pytest.approx(1 - 128 / manifest.tokens)


def test_tar_samples_have_sizes_by_extension_and_labels(tmp_path: Path) -> None:
    files = []
    for number in range(30):
        files += [
            (f"{number}.jpg", b"x" * (100 + number)),
            (f"{number}.cls", b"%d\n" % (number % 3)),
        ]
        if number % 10 == 0:
            files.append((f"{number}.json", b"{}"))
    pack(tmp_path / "a.tar", files)
    assert main(["index", str(tmp_path), "--name", "pictures"]) == 0
    found = SnapshotProfile.decode((tmp_path / "profile.json").read_bytes())
    assert found.profile.rows == 30
    pictures, extras = columns(found)["jpg.bytes"], columns(found)["json.bytes"]
    assert isinstance(pictures, NumberColumn)
    assert (pictures.sketch.quantiles[0], pictures.sketch.quantiles[-1]) == (100.0, 129.0)
    assert extras.missing == 27
    labels = columns(found)["cls"]
    assert isinstance(labels, CategoryColumn)
    assert labels.counts == {"0": 10, "1": 10, "2": 10}


def test_old_data_stay_old(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a copy, by the same command again, and as the command reads a profile that is there."""
    text, out = tmp_path / "a.txt", tmp_path / "corpus"
    text.write_text("some words\n" * 50)
    command = ["prepare", str(text), "--name", "corpus", "--out", str(out)]
    assert main([*command, "--no-profile"]) == 0
    assert not (out / "profile.json").exists()
    os.utime(out / "manifest.json", (1e9, 1e9))
    assert main(command) == 0
    shutil.copytree(out, tmp_path / "copy", copy_function=shutil.copyfile)
    assert main([*command[:-1], str(tmp_path / "copy")]) == 0
    capsys.readouterr()
    assert main(["profile", str(tmp_path / "copy")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["made_at"].startswith("2001-09-09T01:46:40")
    assert found["profile"]["rows"] == 1


def test_a_profile_of_another_snapshot_is_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, _ = tokens(tmp_path / "one")
    other, manifest = tokens(tmp_path / "other", [b"z" * 900])
    (other / "profile.json").write_bytes(make_profile(folder_snapshot(one), None).encode())
    assert main(["profile", str(other)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["snapshot"], found["profile"]["rows"]) == (manifest.name, 1)
