"""`gangline demo` without a platform: which story it tells, and what its exit code says."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gangline.commands import demo as command
from gangline.demo.outcome import Outcome
from gangline.demo.story import Story
from gangline.errors import CliError


@pytest.mark.parametrize("passed", [True, False])
def test_the_loop_is_told_and_a_check_that_fails_is_an_error(
    passed: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = SimpleNamespace(url="http://127.0.0.1:1", token="t0ken")
    platform = SimpleNamespace(start=lambda: started)
    monkeypatch.setattr("gangline.local.platform.Platform", lambda *_: nullcontext(platform))
    told: list[Any] = []

    def play_loop(_client: object, token: str, folder: Path, _say: object) -> Outcome:
        told.append((token, folder))
        return Outcome({"the champion stayed": passed}, {"the whole loop (s)": 1.0})

    monkeypatch.setattr(command, "play_loop", play_loop)
    if passed:
        command.demo(tmp_path, loop=True)
        assert f"files are in {tmp_path / 'loop'}" in capsys.readouterr().out
    else:
        with pytest.raises(CliError, match="some checks failed: the champion stayed"):
            command.demo(tmp_path, loop=True)
    assert told == [("t0ken", tmp_path / "loop")]


def test_the_story_of_a_failure_says_where_its_report_and_the_pages_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = SimpleNamespace(url="http://127.0.0.1:1", token="t0ken")
    platform = SimpleNamespace(start=lambda: started)
    monkeypatch.setattr("gangline.local.platform.Platform", lambda *_: nullcontext(platform))
    monkeypatch.setattr(command, "play", lambda *_: Story({"it resumed": True}))
    command.demo(tmp_path)
    lines = capsys.readouterr().out
    assert f"report is {tmp_path / 'index.html'}" in lines
    assert "then the page is http://127.0.0.1:1/console/" in lines
