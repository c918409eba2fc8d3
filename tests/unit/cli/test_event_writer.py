"""Event files that we write, as the genuine TensorBoard reads them."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c as genuine_crc
from tensorboard.plugins.hparams import metadata as hparams

from gangline.exchange.event_writer import OWN_FILES, EventWriter
from gangline.exchange.records import Point, SourceRun
from gangline.exchange.sources import source_of
from gangline.exchange.tfrecord import masked_crc32c

POINTS = [
    *(Point("loss", step, 1_700_000_000_000 + step, 2.0 / (1 + step)) for step in range(100)),
    Point("eval/acc é", 0, 1_700_000_000_000, 0.5),
    Point("eval/acc é", 2**62, 1_700_000_000_001, math.inf),
    Point("early", -5, 1_700_000_000_000, math.nan),
    Point("large", 1, 1_700_000_000_000, 1.7e308),
]


def test_the_genuine_reader_finds_each_point_and_the_parameters(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "run") as writer:
        writer.add_parameters({"lr": "0.0003", "optimizer": "adamw"}, 1_700_000_000_000)
        assert writer.add(POINTS) == len(POINTS)
        read = EventAccumulator(str(tmp_path / "run"), size_guidance={"scalars": 0})
        read.Reload()  # before the file is closed: readers see what was written
    assert sorted(read.Tags()["scalars"]) == ["early", "eval/acc é", "large", "loss"]
    loss = [(item.step, round(item.wall_time * 1000), item.value) for item in read.Scalars("loss")]
    assert loss == [(p.step, p.time_ms, pytest.approx(p.value)) for p in POINTS[:100]]
    assert [(item.step, item.value) for item in read.Scalars("eval/acc é")] == [
        (0, 0.5),
        (2**62, math.inf),
    ]
    (early,) = read.Scalars("early")
    assert early.step == -5
    assert math.isnan(early.value)
    assert read.Scalars("large")[0].value == math.inf
    content = read.SummaryMetadata(hparams.SESSION_START_INFO_TAG).plugin_data.content
    start = hparams.parse_session_start_info_plugin_data(content)
    assert start.hparams["lr"].number_value == 0.0003
    assert start.hparams["optimizer"].string_value == "adamw"


def test_our_reader_reads_it_as_well(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "run") as writer:
        writer.add_parameters({"lr": "0.5"}, 1_000)
        writer.add(POINTS)
    assert [*(tmp_path / "run").glob(OWN_FILES)]
    (run,) = source_of(tmp_path).runs()
    assert isinstance(run, SourceRun)
    single = [p._replace(value=_single(p.value)) for p in POINTS]
    assert str([*run.points()]) == str(single)
    assert run.params == {"lr": "0.5"}
    assert run.left == {}


def _single(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.inf


@given(st.binary(max_size=200))
def test_checksums_are_the_genuine_ones(data: bytes) -> None:
    assert masked_crc32c(data) == genuine_crc(data)
