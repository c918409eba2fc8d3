"""Each command has a help text that names it."""

from __future__ import annotations

from typing import Any

from gangline.main import commands
from support.harnesses.cli_run import Runner


def test_every_command_shows_its_help(gangline: Runner) -> None:
    left: list[tuple[tuple[str, ...], Any]] = [((), commands())]
    seen = 0
    while left:
        path, command = left.pop()
        left += [((*path, name), one) for name, one in getattr(command, "commands", {}).items()]
        shown = gangline(*path, "--help")
        assert shown.code == 0, (path, shown.err)
        assert f"gangline {' '.join(path)}".strip() in shown.out
        seen += 1
    assert seen > 30
