"""The steps of a run as a picture: boxes in columns, each right of those that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gangline_schemas.api.pipelines import StepRow

MOST_BOXES = 150
BOX_WIDTH, BOX_HEIGHT = 168, 44
_COLUMN, _ROW = BOX_WIDTH + 56, BOX_HEIGHT + 16
_MARGIN = 4
_NAME_CHARS = 20


@dataclass(frozen=True)
class Box:
    """A step at its place, in pixels."""

    step: StepRow
    x: int
    y: int

    @property
    def name(self) -> str:
        """Its name, cut to the box."""
        name = self.step.name
        return name if len(name) <= _NAME_CHARS else f"{name[: _NAME_CHARS - 1]}…"


@dataclass(frozen=True)
class Picture:
    """Boxes, and the paths of the lines between them."""

    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    width: int
    height: int


def picture(steps: Sequence[StepRow]) -> Picture | None:
    """The picture of a run; None without steps, or with too many. `steps`: each after its needs."""
    if not 0 < len(steps) <= MOST_BOXES:
        return None
    columns: list[list[str]] = []
    level: dict[str, int] = {}
    for step in steps:
        level[step.name] = 1 + max(
            (level[need] for need in step.needs if need in level), default=-1
        )
        while len(columns) <= level[step.name]:
            columns.append([])
        columns[level[step.name]].append(step.name)
    rows = _rows(columns, {step.name: step.needs for step in steps})
    tallest = max((len(column) for column in columns), default=0)
    boxes = {}
    for step in steps:
        at = level[step.name]
        shift = (tallest - len(columns[at])) * _ROW // 2
        x, y = _MARGIN + at * _COLUMN, _MARGIN + shift + rows[step.name] * _ROW
        boxes[step.name] = Box(step, x, y)
    lines = tuple(
        _line(boxes[need], boxes[step.name])
        for step in steps
        for need in step.needs
        if need in boxes
    )
    width = _MARGIN * 2 + len(columns) * _COLUMN - (_COLUMN - BOX_WIDTH)
    height = _MARGIN * 2 + tallest * _ROW - (_ROW - BOX_HEIGHT)
    return Picture(tuple(boxes.values()), lines, width, height)


def _rows(columns: Sequence[Sequence[str]], needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The row of each step: near those that it needs, so that few lines cross."""
    rows: dict[str, int] = {}
    for column in columns:
        middle = {
            name: sum(rows.get(need, 0) for need in needs[name]) / max(1, len(needs[name]))
            for name in column
        }
        rows |= {name: at for at, name in enumerate(sorted(column, key=middle.__getitem__))}
    return rows


def _line(start: Box, end: Box) -> str:
    x, y = start.x + BOX_WIDTH, start.y + BOX_HEIGHT // 2
    to_x, to_y = end.x, end.y + BOX_HEIGHT // 2
    bend = (to_x - x) // 2
    return f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
