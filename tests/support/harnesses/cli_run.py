"""Runs the `gangline` command in this process, as its entry point does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gangline.main import main

Runner = Callable[..., "Ran"]


@dataclass(frozen=True)
class Ran:
    """How one command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """All of stdout as one document; fails when anything else stands there."""
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        """Each line of stdout as one object."""
        return [json.loads(line) for line in self.out.splitlines()]


def runner(capsys: pytest.CaptureFixture[str]) -> Runner:
    """Runs the command with these arguments."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        said = capsys.readouterr()
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0 if code is None else 1, said.out, said.err)

    return run
