"""Imports of W&B's files; the run file was recorded from W&B 0.31."""

from __future__ import annotations

import csv
import json
import math
import struct
import zlib
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from gangline.exchange import records
from gangline.exchange.sources import source_of
from support.builders.imports import RECORDED, runs, values


def test_a_run_file_of_wandb() -> None:
    (run,) = runs(RECORDED)
    assert (run.name, run.project, run.state) == ("offline run", "sft", "FINISHED")
    assert run.source_id == "wandb/sft/75i2djbw"
    assert run.params == {
        "lr": "0.0003", "layers": "12", "opt.name": "adamw", "opt.betas": "[0.9, 0.95]",
        "note": "é",
    }  # fmt: skip
    assert run.tags == {
        "wandb.tags": "a,b", "wandb.notes": "some notes", "wandb.group": "g",
        "wandb.job_type": "train", "wandb.summary.best": "0.1",
    }  # fmt: skip
    found = values(run)
    names = {name for name, _ in found}
    assert names == {"loss", "eval/acc", "nan", "inf", "nested.a", "nested.b.c", "flag", "late"}
    assert [found["loss", n] for n in range(20)] == [2.0 / (1 + n) for n in range(20)]
    assert found["late", 100] == found["flag", 3] == 1.0
    assert math.isnan(found["nan", 0])
    assert found["inf", 0] == math.inf
    assert run.left == {"texts": 20, "values of the type histogram": 2}
    assert run.troubles == []
    assert 0 < (run.started_ms or 0) < (run.ended_ms or 0)


def test_a_run_file_with_records_over_blocks(tmp_path: Path) -> None:
    """A record of 100,000 bytes, in the pieces that LevelDB's format makes of it."""
    begin, data = RECORDED.read_bytes(), b"\x0a\xa0\x8d\x06" + bytes(100_000)
    out = bytearray(begin[:7])
    for record in (data, *whole_records(begin)):
        left = record
        while True:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += bytes(room)
                continue
            part, rest = left[: room - 7], left[room - 7 :]
            kind = (1 if not rest else 2) if left is record else (4 if not rest else 3)
            head = struct.pack("<HB", len(part), kind)
            out += struct.pack("<I", zlib.crc32(part, zlib.crc32(head[2:]))) + head + part
            left = rest
            if not rest:
                break
    file = tmp_path / "run-x.wandb"
    file.write_bytes(out)
    (run,), (same,) = runs(file), runs(RECORDED)
    assert str([*run.points()]) == str([*same.points()])
    file.write_bytes(out[:-5])
    (run,) = runs(file)
    assert run.state == "KILLED"
    assert len([*run.points()]) > 100
    out[60_000] ^= 255
    file.write_bytes(out)
    (error,) = source_of(file).runs()
    assert "checksum" in str(error)


def whole_records(content: bytes) -> list[bytes]:
    """Of a file of one block."""
    found, at = [], 7
    while at < len(content):
        length = int.from_bytes(content[at + 4 : at + 6], "little")
        found.append(content[at + 7 : at + 7 + length])
        at += 7 + length
    return found


ROWS = [
    {"_step": 0, "_timestamp": 100.5, "loss": 2.0, "flag": True, "note": "x"},
    {"_step": 5, "_timestamp": 101.5, "loss": float("nan"), "flag": False, "note": ""},
]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json", "parquet"])
def test_an_export_of_wandb(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "abc"
    folder.mkdir()
    file = folder / f"history.{suffix}"
    if suffix == "csv":
        with file.open("w", newline="", encoding="utf-8-sig") as opened:  # as spreadsheets do
            writer = csv.DictWriter(opened, ROWS[0].keys())
            writer.writeheader()
            writer.writerows(ROWS)
    elif suffix == "parquet":
        parquet.write_table(pa.Table.from_pylist(ROWS), file)
    else:
        lines = "\n".join(json.dumps(row) for row in ROWS)
        file.write_text(f"\ufeff{lines}" if suffix == "jsonl" else json.dumps(ROWS))
    (folder / "config.json").write_text('{"lr": 0.1, "net": {"dim": 8}}')
    (folder / "metadata.json").write_text('{"id": "q1", "name": "a", "project": "p"}')
    (run,) = runs(tmp_path)
    assert (run.source_id, run.name, run.project) == ("wandb/p/q1", "a", "p")
    assert run.params == {"lr": "0.1", "net.dim": "8"}
    assert (run.started_ms, run.ended_ms) == (100_500, 101_500)
    found = values(run)
    assert (found["loss", 0], found["flag", 0], found["flag", 5]) == (2.0, 1.0, 0.0)
    assert math.isnan(found["loss", 5])
    assert run.left == {"texts": 1}


def test_a_history_with_a_bad_line(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text('{"_step": 1, "loss": 2.0}\n{"_step": \n')
    (run,) = runs(file)
    assert values(run) == {("loss", 1): 2.0}
    assert run.troubles[0].startswith(f"{file}: line 2: ")


@pytest.mark.parametrize("line", ["[" * 100_000, '{"_step": ' + "9" * 5000 + "}"])
def test_a_line_that_json_cannot_read(tmp_path: Path, line: str) -> None:
    (tmp_path / "history.jsonl").write_text(f'{{"_step": 1, "loss": 2.0}}\n{line}\n')
    (run,) = runs(tmp_path)
    assert values(run) == {("loss", 1): 2.0}
    assert len(run.troubles) == 1


def test_a_line_without_an_end_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(csv.field_size_limit, csv.field_size_limit()))  # of the process
    monkeypatch.setattr(records, "LONGEST_LINE", 100)
    for suffix, first in (("jsonl", '{"_step": 1, "loss": 2.0}'), ("csv", "_step,loss\n1,2.0")):
        file = tmp_path / f"history.{suffix}"
        file.write_text(f"{first}\n{'9' * 200}")
        (run,) = runs(file)
        assert values(run) == {("loss", 1): 2.0}
        assert "a line is longer than" in run.troubles[0]


def test_a_file_that_is_too_large_to_be_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LARGEST_TEXT", 100)
    file = tmp_path / "history.json"
    file.write_text(json.dumps(ROWS))
    (run,) = runs(file)
    assert (values(run), len(run.troubles)) == ({}, 1)
    assert "larger than" in run.troubles[0]


def test_numbers_that_are_too_large(tmp_path: Path) -> None:
    row = f'{{"_step": 1, "_timestamp": 1e308, "loss": {10**400}}}'
    (tmp_path / "history.jsonl").write_text(row)
    (run,) = runs(tmp_path)
    assert (run.started_ms, values(run)) == (None, {("loss", 1): math.inf})


def test_a_link_from_an_export_of_wandb_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "abc"
    folder.mkdir()
    (tmp_path / "auths.json").write_text('{"token": "private"}')
    (folder / "config.json").symlink_to(tmp_path / "auths.json")
    (folder / "history.jsonl").write_text('{"_step": 1, "loss": 2.0}')
    (error,) = source_of(folder).runs()
    assert "config.json: is a link to a file elsewhere" in str(error)


def test_a_damaged_run_file_is_named_once(tmp_path: Path) -> None:
    file = tmp_path / "x.wandb"
    file.write_bytes(b"none of its records")
    (error,) = source_of(file).runs()
    assert str(error).count(str(file)) == 1
