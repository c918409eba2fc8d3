"""TensorBoard's event files: scalars and hyperparameters. Each directory with files is a run."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from gangline.exchange import protobuf
from gangline.exchange.protobuf import NotProtobufError
from gangline.exchange.records import Point, SourceError, SourceRun, as_text, files_below
from gangline.exchange.tfrecord import CutError, DamagedError, records

PATTERN = "*tfevents.*"
_SCALARS, _HPARAMS = "scalars", "hparams"
_PARTS = {4: "images", 5: "histograms", 6: "audio clips", 3: "histograms"}
"""Fields of a summary's value that hold no scalar."""
_FORMATS = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}
"""struct's words for a tensor's dtype: float, double, int32, int64."""


class EventFiles:
    """All event files below a directory, or one file."""

    kind = "TensorBoard event files"

    def __init__(self, path: Path) -> None:
        self._root = path if path.is_dir() else path.parent
        self._files = files_below(path, PATTERN)

    def runs(self) -> Iterator[SourceRun | SourceError]:
        """A run for each directory, named as TensorBoard names it."""
        folders: dict[Path, list[Path]] = {}
        for file in self._files:
            folders.setdefault(file.parent, []).append(file)
        for folder, files in folders.items():
            name = str(folder.relative_to(self._root))
            name = self._root.resolve().name if name == "." else name
            first = min(file.name for file in files)
            reader = _Reader(files)
            yield SourceRun(f"{name}/{first}", name, reader.points, params=reader.params)


class _Reader:
    def __init__(self, files: list[Path]) -> None:
        self._files = files
        self.params: dict[str, str] = {}
        self._plugins: dict[str, str] = {}

    def points(self, run: SourceRun) -> Iterator[Point]:
        """Also finds the run's parameters, start and end."""
        run.started_ms = run.ended_ms = None
        for file in self._files:
            try:
                with file.open("rb") as opened:
                    for data in records(opened):
                        yield from self._event(data, run)
            except OSError as error:
                run.troubles.append(f"{file}: {error.strerror}")
            except CutError:
                run.left[f"incomplete last records ({file.name})"] += 1
            except DamagedError as error:
                run.troubles.append(
                    f"{file}: the checksum of {error} is wrong; what follows is not read"
                )
            except (NotProtobufError, ValueError, OverflowError, struct.error) as error:
                run.troubles.append(f"{file}: no event of TensorBoard: {error}")

    def _event(self, data: bytes, run: SourceRun) -> Iterator[Point]:
        event = protobuf.message(data)
        time_ms = round(protobuf.double(protobuf.raw(event, 1)) * 1000)
        run.started_ms = min(run.started_ms or time_ms, time_ms)
        run.ended_ms = max(run.ended_ms or time_ms, time_ms)
        step = protobuf.integer(event, 2)
        for number, what in ((4, "graphs"), (9, "graphs"), (8, "profiles")):
            run.left[what] += number in event
        summary = protobuf.message(protobuf.last(event, 5))
        for content in summary.get(1, []):
            value = protobuf.message(content)
            name = protobuf.text(value, 1)
            found = self._scalar(name, value, run)
            if found is not None:
                yield Point(name, step, time_ms, found)
        run.left += type(run.left)()  # without zeros

    def _scalar(
        self, name: str, value: dict[int, list[protobuf.Value]], run: SourceRun
    ) -> float | None:
        """The scalar of one value; else it is counted, or read as parameters."""
        plugin = protobuf.message(protobuf.last(protobuf.message(protobuf.last(value, 9)), 1))
        if plugin:
            self._plugins[name] = protobuf.text(plugin, 1)
        kind = self._plugins.get(name, "")
        if kind == _HPARAMS:
            self.params |= _hyperparameters(protobuf.raw(plugin, 2))
            return None
        if 2 in value:
            return protobuf.double(protobuf.raw(value, 2))
        other = next((what for number, what in _PARTS.items() if number in value), "")
        if not other and kind in {_SCALARS, ""}:
            found = _of_tensor(protobuf.message(protobuf.last(value, 8)))
            if found is not None:
                return found
        run.left[other or kind or "tensors"] += 1
        return None


def _of_tensor(tensor: dict[int, list[protobuf.Value]]) -> float | None:
    """The value of a tensor with one number; None for all others."""
    kind = protobuf.integer(tensor, 1)
    content = protobuf.raw(tensor, 4)
    form = _FORMATS.get(kind)
    if form is not None and len(content) == struct.calcsize(form):
        return float(struct.unpack(form, content)[0])
    if kind in {1, 2}:
        values = protobuf.raw(tensor, 5 if kind == 1 else 6)
        if len(values) == (4 if kind == 1 else 8):
            return protobuf.double(values)
    return None


def _hyperparameters(content: bytes) -> dict[str, str]:
    """Of a HParamsPluginData's session_start_info."""
    found = {}
    start = protobuf.message(protobuf.last(protobuf.message(content), 3))
    for item in start.get(1, []):
        entry = protobuf.message(item)
        value = protobuf.message(protobuf.last(entry, 2))
        plain: object = None
        if 2 in value:
            plain = protobuf.double(protobuf.raw(value, 2))
        elif 3 in value:
            plain = protobuf.text(value, 3)
        elif 4 in value:
            plain = bool(protobuf.integer(value, 4))
        found[protobuf.text(entry, 1)] = as_text(plain)
    return found
