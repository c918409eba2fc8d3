"""Making token snapshots: what they hold, what is refused, and how it resumes after a stop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from gangline_storage import LocalStore, digest_file
from gangline_worker.data import inputs
from gangline_worker.data.__main__ import main
from gangline_worker.data.errors import DataError
from gangline_worker.data.manifest import Manifest, TokenizerInfo
from gangline_worker.data.prepare import Progress, prepare
from gangline_worker.data.tokenizer import ByteTokenizer, Tokens
from gangline_worker.data.verify import verify
from support.builders.data import SHARD_TOKENS, quiet, small_snapshot, small_sources, text_bytes


def all_tokens(out: Path, manifest: Manifest) -> list[int]:
    parts = [np.fromfile(out / shard.name, dtype=manifest.item_type) for shard in manifest.shards]
    return [int(token) for token in np.concatenate(parts)]


def document_starts(out: Path, manifest: Manifest) -> list[int]:
    """Offsets over all shards."""
    starts = []
    for index, shard in enumerate(manifest.shards):
        offsets = np.fromfile(out / shard.documents.name, dtype="<u8")
        starts += [index * manifest.shard_tokens + int(offset) for offset in offsets]
    return starts


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def mixed_inputs(folder: Path) -> tuple[list[Path], list[bytes]]:
    """A text file, JSON lines and Parquet, and the documents that they hold."""
    folder.mkdir(parents=True)
    documents = [text_bytes(700, seed=1)]
    (folder / "a.txt").write_bytes(documents[0])
    lines = ["ein Satz", "", "zwei\nZeilen " * 60, "ü" * 10]
    rows = [json.dumps({"id": n, "text": line}) for n, line in enumerate(lines)]
    (folder / "b.jsonl").write_text("\n".join([*rows[:2], "  ", *rows[2:]]))
    cells = [f"row {n} " * (n % 9) for n in range(90)]
    table = pa.table({"text": cells, "id": list(range(90))})
    parquet.write_table(table, folder / "c.parquet", row_group_size=25)
    documents += [text.encode() for text in lines + cells]
    return sorted(folder.iterdir()), [document for document in documents if document]


def test_all_kinds_become_one_stream_with_its_documents(tmp_path: Path) -> None:
    files, documents = mixed_inputs(tmp_path / "in")
    out = tmp_path / "out"
    manifest = prepare(out, small_sources(files, out), ByteTokenizer(), quiet)
    expected = b"".join(document + b"\0" for document in documents)
    assert bytes(all_tokens(out, manifest)) == expected
    assert manifest.tokens == len(expected)
    assert manifest.documents == len(documents)
    starts = [0, *np.cumsum([len(document) + 1 for document in documents])][:-1]
    assert document_starts(out, manifest) == starts
    assert {shard.tokens for shard in manifest.shards[:-1]} == {SHARD_TOKENS}
    assert all(digest_file(out / shard.name) == shard.xxh3 for shard in manifest.shards)
    assert verify(LocalStore(out), manifest) == []
    assert {path.suffix for path in out.iterdir()} == {".tok", ".idx", ".json"}
    assert {path.name for path in out.glob("*.json")} == {"manifest.json", "sources.json"}


def test_the_name_is_of_the_content(tmp_path: Path) -> None:
    names = []
    for folder, seed in (("one", 1), ("two", 1), ("three", 2)):
        (tmp_path / folder).mkdir()
        names.append(small_snapshot(tmp_path / folder, seed=seed)[1].name)
    assert names[0] == names[1] != names[2]
    assert names[0].startswith("corpus@xxh3-")


class Stopped(Exception):
    pass


@settings(deadline=None, max_examples=8)
@given(stops=st.lists(st.integers(0, 90), max_size=6))
def test_stopped_anywhere_it_goes_on_to_the_same_bytes(
    stops: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("stops")
    files, _ = mixed_inputs(tmp_path / "in")
    whole = tmp_path / "whole"
    prepare(whole, small_sources(files, whole), ByteTokenizer(), quiet)
    out = tmp_path / "out"
    for stop in stops:
        left = stop

        def tell(_: Progress) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Stopped

        try:
            prepare(out, small_sources(files, out), ByteTokenizer(), tell)
        except Stopped:
            assert not (out / "manifest.json").exists()
    prepare(out, small_sources(files, out), ByteTokenizer(), quiet)
    assert content(out) == content(whole)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("lost", ["shard-000003.tok", "shard-000003.idx"])
def test_a_shard_whose_files_are_gone_is_made_again(tmp_path: Path, lost: str) -> None:
    out, _, _ = small_snapshot(tmp_path)
    whole = content(out)
    sources = small_sources([tmp_path / "input.txt"], out)
    again = tmp_path / "again"

    def stop_at_end(progress: Progress) -> None:
        if progress.shards:
            raise Stopped

    with pytest.raises(Stopped):
        prepare(again, sources, ByteTokenizer(), stop_at_end)
    (again / lost).unlink()
    prepare(again, sources, ByteTokenizer(), quiet)
    assert content(again) == whole


def test_a_shard_whose_record_is_damaged_is_made_again(tmp_path: Path) -> None:
    out, _, _ = small_snapshot(tmp_path)
    whole = content(out)
    again = tmp_path / "again"
    sources = small_sources([tmp_path / "input.txt"], again)

    def stop_at_end(_: Progress) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        prepare(again, sources, ByteTokenizer(), stop_at_end)
    (again / "shard-000001.json").write_bytes(b"")
    prepare(again, sources, ByteTokenizer(), quiet)
    assert content(again) == whole


def test_done_already_it_is_only_read(tmp_path: Path) -> None:
    out, manifest, _ = small_snapshot(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    (out / "shard-000000.json").write_text("left by a kill before the last step")
    sources = small_sources([tmp_path / "input.txt"], out)
    assert prepare(out, sources, ByteTokenizer(), quiet) == manifest
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_other_sources_are_refused(tmp_path: Path) -> None:
    out, _, _ = small_snapshot(tmp_path)
    text = tmp_path / "input.txt"
    changed = small_sources([text], out, field="body", shard_tokens=1024)
    with pytest.raises(DataError, match="was begun with other field, shard_tokens"):
        prepare(out, changed, ByteTokenizer(), quiet)
    text.write_bytes(b"changed")
    with pytest.raises(DataError, match="was begun with other inputs"):
        prepare(out, small_sources([text], out), ByteTokenizer(), quiet)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(DataError, match="not empty"):
        prepare(tmp_path / "full", small_sources([text], out), ByteTokenizer(), quiet)


def test_what_ended_before_its_first_shard_takes_no_folder(tmp_path: Path) -> None:
    """A column that there is not, or an empty file: the command that is right now may follow."""
    out, lines = tmp_path / "out", tmp_path / "a.jsonl"
    lines.write_text('{"body": "one"}\n{"body": "two"}\n')
    with pytest.raises(DataError, match="has no field 'text'"):
        prepare(out, small_sources([lines], out), ByteTokenizer(), quiet)
    manifest = prepare(out, small_sources([lines], out, field="body"), ByteTokenizer(), quiet)
    assert manifest.documents == 2
    with pytest.raises(DataError, match="was begun with other field"):
        prepare(out, small_sources([lines], out), ByteTokenizer(), quiet)


def test_an_output_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("words")
    assert main(["prepare", str(file), "--out", str(file)]) == 2
    assert f"--out {file}: is a file; name a folder" in capsys.readouterr().err


def test_an_input_that_changes_on_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a" * 100)
    (tmp_path / "b.txt").write_bytes(b"b" * 100)
    out = tmp_path / "out"
    sources = small_sources([tmp_path / "a.txt", tmp_path / "b.txt"], out)
    (tmp_path / "b.txt").write_bytes(b"c" * 101)
    with pytest.raises(DataError, match=r"b\.txt: has changed since this preparation began"):
        prepare(out, sources, ByteTokenizer(), quiet)


def test_two_writers_do_not_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a" * 100)
    out = tmp_path / "out"
    sources = small_sources([tmp_path / "a.txt"], out)

    def second(_: Progress) -> None:
        with pytest.raises(DataError, match="another process prepares data there"):
            prepare(out, sources, ByteTokenizer(), quiet)
        seen.append(True)

    seen: list[bool] = []
    prepare(out, sources, ByteTokenizer(), second)
    assert seen


def test_a_text_file_is_one_document_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_DOCUMENT_BYTES", 50)
    (tmp_path / "a.txt").write_bytes(b"a" * 51)
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "b" * 50}))
    for name, message in (("a.txt", "a text file is one document"), ("b.jsonl", ":1: is longer")):
        with pytest.raises(DataError, match=message):
            prepare(
                tmp_path / "out" / name,
                small_sources([tmp_path / name], tmp_path / "out"),
                ByteTokenizer(),
                quiet,
            )


class Words:
    """A vocabulary beyond 16 bits, which needs text: a word is its number."""

    def __init__(self, vocab_size: int = 100_000) -> None:
        self.info = TokenizerInfo(name="words", vocab_size=vocab_size)

    def encode(self, data: bytes) -> Tokens:
        return np.array([int(word) for word in data.decode().split()], dtype=np.uint32)


def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 99999 70000")
    out = tmp_path / "out"
    sources = small_sources([tmp_path / "a.txt"], out, tokenizer=Words().info)
    manifest = prepare(out, sources, Words(), quiet)
    assert manifest.dtype == "uint32"
    assert all_tokens(out, manifest) == [1, 99999, 70000]


def test_a_document_that_the_tokenizer_cannot_take_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"1 2\n3 \xff")
    out = tmp_path / "out"
    sources = small_sources([tmp_path / "a.txt"], out, tokenizer=Words().info)
    with pytest.raises(DataError, match=r"a\.txt: line 2 of it is not UTF-8 \(byte 6\)"):
        prepare(out, sources, Words(), quiet)
    (tmp_path / "b.txt").write_text("1 500")
    sources = small_sources([tmp_path / "b.txt"], out, tokenizer=Words(200).info)
    with pytest.raises(DataError, match=r"b\.txt: words gave token 500, above .* 200"):
        prepare(tmp_path / "out2", sources, Words(200), quiet)


def test_the_command_prepares_and_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, documents = mixed_inputs(tmp_path / "in")
    out = tmp_path / "My Corpus"
    assert main(["prepare", str(tmp_path / "in"), "--out", str(out), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["name"].startswith("my-corpus@xxh3-")
    assert (made["documents"], made["shards"]) == (len(documents), 1)
    assert main(["show", str(out)]) == 0
    assert made["name"] in capsys.readouterr().out
    assert main(["show", f"file://{out.resolve()}".replace(" ", "%20"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == made
