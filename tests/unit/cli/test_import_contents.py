"""Imports of any content: names that MLflow takes, and damaged files."""

from __future__ import annotations

import struct
import zlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.exchange.names import Names, fitting
from gangline.exchange.records import Point, SourceRun
from gangline.exchange.sources import source_of
from gangline.exchange.tfrecord import record
from support.builders.imports import RECORDED


def test_names_that_mlflow_takes() -> None:
    names = Names()
    wanted = ["loss", "acc@5", "acc_5", "../x", "/a//b", "", "é", "n" * 300, "n" * 301, "acc@5"]
    given = [names.of(name) for name in wanted]
    assert given[:7] == ["loss", "acc_5", "acc_5_2", "x", "a/b", "_", "é"]
    assert given[9] == "acc_5"
    assert len({*given}) == len(wanted) - 1
    assert max(map(len, given)) <= 250
    left: Counter[str] = Counter()
    assert fitting({"a": "x" * 11, "b": "y"}, 10, "tags", left) == {"a": "x" * 10, "b": "y"}
    assert left == {"tags of more than 10 characters (cut)": 1}


@given(st.text(min_size=1, max_size=20))
def test_any_name_becomes_one_that_mlflow_takes(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    taken = Names().of(name)
    _validate_metric_name(taken)  # raises for a name that MLflow refuses
    assert Names().of(taken) == taken


@given(st.lists(st.binary(max_size=60), max_size=4), st.data())
def test_no_content_of_a_record_ends_an_import(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], data: st.DataObject
) -> None:
    """With right checksums: events and records of W&B, a byte of each changed."""
    folder = tmp_path_factory.mktemp("fuzz")
    event = b"\x09\x00\x00\x00\x00\x00\x00$@\x10\x05*\x0f\n\r\n\x04loss\x15\x00\x00\x80?"
    for original in (event, event + event):
        changed = bytearray(original)
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
        records.append(bytes(changed))
    (folder / "events.out.tfevents.1.x").write_bytes(b"".join(map(record, records)))
    for run in source_of(folder).runs():
        assert isinstance(run, SourceRun)
        assert all(isinstance(point.value, float) for point in run.points())
    content = bytearray(RECORDED.read_bytes())
    place = data.draw(st.integers(14, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    at = 7
    while at < len(content):  # all checksums are right again
        length = struct.unpack("<H", content[at + 4 : at + 6])[0]
        body = bytes(content[at + 6 : at + 7 + length])
        content[at : at + 4] = struct.pack("<I", zlib.crc32(body))
        at += 7 + length
    file = folder / "run-x.wandb"
    file.write_bytes(content)
    for found in source_of(file).runs():
        if isinstance(found, SourceRun):
            assert all(isinstance(point, Point) for point in found.points())
