"""Event files for TensorBoard: scalars and hyperparameters of runs, one directory for each."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, Self

from gangline.exchange.protobuf import encoded
from gangline.exchange.records import Point
from gangline.exchange.tfrecord import record

_HPARAMS_TAG = "_hparams_/session_start_info"
OWN_FILES = "events.out.tfevents.*.gangline"
_VERSION = "brain.Event:2"
_LARGEST = (2 - 2**-23) * 2.0**127


class EventWriter:
    """Writes one file in `folder`, which is created. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now_s = time.time()
        name = OWN_FILES.replace("*", f"{now_s:.0f}")
        self._file: BinaryIO = (folder / name).open("wb")
        self._file.write(record(encoded(1, now_s) + encoded(3, _VERSION)))

    def __enter__(self) -> Self:
        """The file is there, without points."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()

    def add(self, points: Iterable[Point]) -> int:
        """Write points, so that readers see them; gives their number."""
        count = 0
        for point in points:
            value = encoded(1, point.name) + encoded(2, _single(point.value), single=True)
            self._write(point.time_ms / 1000, point.step, value)
            count += 1
        self._file.flush()
        return count

    def add_parameters(self, params: Mapping[str, str], time_ms: int) -> None:
        """Write hyperparameters for TensorBoard's table HPARAMS."""
        start = b"".join(
            encoded(1, encoded(1, name) + encoded(2, _value(text))) for name, text in params.items()
        )
        content = encoded(1, 0) + encoded(3, start + encoded(5, time_ms / 1000))
        plugin = encoded(1, "hparams") + encoded(2, content)
        tensor = encoded(1, 1) + encoded(2, encoded(2, b""))  # floats, of which there are none
        value = encoded(1, _HPARAMS_TAG) + encoded(9, encoded(1, plugin)) + encoded(8, tensor)
        self._write(time_ms / 1000, 0, value)
        self._file.flush()

    def _write(self, time_s: float, step: int, value: bytes) -> None:
        event = encoded(1, time_s) + encoded(2, step) + encoded(5, encoded(1, value))
        self._file.write(record(event))


def _value(text: str) -> bytes:
    """A number where the text is one, as a google.protobuf.Value."""
    try:
        return encoded(2, float(text))
    except ValueError:
        return encoded(3, text)


def _single(value: float) -> float:
    """As TensorBoard keeps it: what is too large for 32 bits is infinite."""
    return math.copysign(math.inf, value) if abs(value) > _LARGEST else value
