"""Inputs and data that are refused or found damaged: bad lines, other vocabularies, manifests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from gangline_worker.data.__main__ import main
from gangline_worker.data.errors import DataError
from gangline_worker.data.manifest import Manifest, read_manifest
from gangline_worker.data.prepare import prepare
from gangline_worker.data.tokenizer import ByteTokenizer, find_tokenizer
from support.builders.data import (
    BLOCK_BYTES,
    SHARD_TOKENS,
    flip,
    quiet,
    small_snapshot,
    small_sources,
    text_bytes,
)

BAD_LINES = [
    ('{"text": "x"}\n{"text": ', r"in\.jsonl:2: not JSON"),
    ('\n\n{"body": "x", "id": 1}', r"in\.jsonl:3: has no field 'text' \(fields: body, id\)"),
    ('{"text": 7}', r"in\.jsonl:1: 'text' must be text, not int"),
    ("[1]", r"in\.jsonl:1: must be an object"),
    ('{"text": "\\ud800"}', r"in\.jsonl:1: 'text' is not Unicode text"),
    ("[" * 100_000, r"in\.jsonl:1: not JSON"),
    ("\n \n", "no input has any text"),
]


@pytest.mark.parametrize(("text", "message"), BAD_LINES)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "in.jsonl").write_text(text)
    out = tmp_path / "out"
    with pytest.raises(DataError, match=message):
        prepare(out, small_sources([tmp_path / "in.jsonl"], out), ByteTokenizer(), quiet)


def test_bad_parquet_is_named(tmp_path: Path) -> None:
    bad = {
        "a": (
            pa.table({"body": ["x"]}),
            r"a\.parquet: has no column 'text' \(columns: body",
        ),
        "b": (
            pa.table({"text": [1]}),
            r"b\.parquet: the column 'text' must be text, not int",
        ),
        "c": (pa.table({"text": ["x", None]}), r"c\.parquet: row 2 of row group 0: 'text'"),
    }
    for name, (table, message) in bad.items():
        file, out = tmp_path / f"{name}.parquet", tmp_path / name
        parquet.write_table(table, file)
        sources = small_sources([file], out)
        with pytest.raises(DataError, match=message):
            prepare(out, sources, ByteTokenizer(), quiet)
    (tmp_path / "d.parquet").write_bytes(b"PAR1 not really")
    sources = small_sources([tmp_path / "d.parquet"], out)
    with pytest.raises(DataError, match=r"d\.parquet: cannot be read as Parquet"):
        prepare(tmp_path / "d", sources, ByteTokenizer(), quiet)


@pytest.mark.parametrize("compression", ["snappy", "none"])
def test_a_damaged_page_of_parquet_is_named_with_its_file(tmp_path: Path, compression: str) -> None:
    """Only reading the rows shows it. Without compression the page's own checksum does."""
    cells = [text_bytes(20, seed=n).hex() * 5 for n in range(2000)]
    file, out = tmp_path / "a.parquet", tmp_path / "out"
    parquet.write_table(
        pa.table({"text": cells}),
        file,
        compression=compression,
        use_dictionary=False,
        write_page_checksum=compression == "none",
    )
    raw = bytearray(file.read_bytes())
    if compression == "none":
        raw[raw.index(cells[50].encode())] ^= 1
    else:
        raw[20_000:20_200] = b"\xff" * 200
    file.write_bytes(bytes(raw))
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read as Parquet: "):
        prepare(out, small_sources([file], out), ByteTokenizer(), quiet)


def test_parquet_text_that_is_not_utf8_is_bytes_to_the_tokenizer(tmp_path: Path) -> None:
    column = pa.array([b"right", b"wr\xffng"], pa.binary()).view(pa.string())
    file, out = tmp_path / "a.parquet", tmp_path / "out"
    parquet.write_table(pa.table({"text": column}), file)
    prepare(out, small_sources([file], out), ByteTokenizer(), quiet)
    tokens = (out / "shard-000000.tok").read_bytes()[::2]
    assert tokens == b"right\0wr\xffng\0"


def test_what_cannot_be_an_input_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.txt.gz").touch()
    (tmp_path / "y.txt").touch()
    out = tmp_path / "out"
    for sources, message in (
        ([tmp_path / "none"], "none: no such file"),
        ([tmp_path / "empty"], "empty: has no files"),
        ([tmp_path / "x.txt.gz"], r"is packed \(\.gz\)"),
        ([tmp_path], "holds the output"),
        ([tmp_path / "y.txt", tmp_path / "empty" / ".." / "y.txt"], "more than once"),
    ):
        with pytest.raises(DataError, match=message):
            small_sources(sources, out)


@pytest.mark.parametrize("library", ["tokenizers", "transformers"])
def test_a_library_that_is_not_there_is_named(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DataError, match=f"needs the package {library}, which is not installed"):
        find_tokenizer(f"{library}:something")
    for name in ("gpt2", f"{library}:", "sentencepiece:x"):
        with pytest.raises(DataError, match="is not understood; give bytes"):
            find_tokenizer(name)


DAMAGE = [
    ("shard-000001.tok", "flip", "shard-000001.tok block 0: holds other bytes"),
    ("shard-000001.tok", "short", "shard-000001.tok: has 1,023 bytes, 1,024 are in the manifest"),
    ("shard-000001.tok", "gone", "shard-000001.tok: is missing"),
    ("shard-000000.idx", "flip", "shard-000000.idx: holds other bytes"),
    ("shard-000000.idx", "gone", "shard-000000.idx: is missing"),
]


@pytest.mark.parametrize(("name", "how", "message"), DAMAGE)
def test_verify_finds_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, how: str, message: str
) -> None:
    out, manifest, _ = small_snapshot(tmp_path)
    assert main(["verify", str(out)]) == 0
    assert capsys.readouterr().out == f"{manifest.name}: whole\n"
    if how == "flip":
        flip(out / name, 1)
    elif how == "short":
        (out / name).write_bytes((out / name).read_bytes()[:-1])
    else:
        (out / name).unlink()
    assert main(["verify", str(out)]) == 66
    told = capsys.readouterr()
    assert message in told.out.splitlines()
    assert "docs/runbooks/data.md" in told.err
    assert main(["verify", str(out), "--json"]) == 66
    assert json.loads(capsys.readouterr().out)["damage"][-1]["file"] == name


def test_a_manifest_that_was_changed_is_refused(tmp_path: Path) -> None:
    out, manifest, _ = small_snapshot(tmp_path)
    raw = (out / "manifest.json").read_bytes()
    assert read_manifest(out) == manifest
    for old, new, message in (
        (b'"tokens":5001', b'"tokens":5000', "the content is not that of corpus@xxh3-"),
        (b"shard-000001.tok", b"../../etc/passwd", "the content is not that of"),
        (b'"version":1', b'"version":2', "version"),
        (raw[-40:], b"", "not a whole manifest"),
    ):
        assert old in raw
        (out / "manifest.json").write_bytes(raw.replace(old, new))
        with pytest.raises(DataError, match=message):
            read_manifest(out)
    with pytest.raises(ValueError, match=r"shards\.1 has a wrong name"):
        Manifest.of(
            "forged",
            tokenizer=manifest.tokenizer,
            block_bytes=BLOCK_BYTES,
            shard_tokens=SHARD_TOKENS,
            shards=(manifest.shards[0], manifest.shards[0]),
        )


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("text")
    out = str(tmp_path / "out")
    for arguments, code, message in (
        (["show", str(tmp_path)], 2, "has no manifest.json"),
        (["show", f"file://{tmp_path}"], 2, "has no manifest.json"),
        (["verify", "s4://bucket"], 1, "'s4' is not understood"),
        (["prepare", str(tmp_path / "none"), "--out", out], 2, "none: no such file"),
        (["prepare", str(tmp_path / "a.txt"), "--out", out, "--shard-mb", "0"], 2, "--shard-mb 0"),
        (["prepare", str(tmp_path / "a.txt"), "--out", out, "--name", "A b"], 2, "--name A b"),
        (
            ["prepare", str(tmp_path / "a.txt"), "--out", out, "--end-of-document", "256"],
            2,
            "bytes has tokens 0 to 255",
        ),
        (["prepare", str(tmp_path / "a.txt"), "--out", "/dev/null/x"], 1, "Not a directory"),
    ):
        assert main(arguments) == code, arguments
        captured = capsys.readouterr()
        assert captured.out == ""
        assert message in captured.err
