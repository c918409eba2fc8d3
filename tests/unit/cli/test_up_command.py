"""`gangline up`: what it offers, and when it does not begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.errors import CliError
from gangline.local.platform import Platform, PlatformSettings
from support.harnesses.cli_run import Runner, runner

GPUS = "one node with all GPUs"


@pytest.fixture
def gangline(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runner:
    """The command on a machine without any program, so without NVIDIA's."""
    monkeypatch.setenv("PATH", "")
    return runner(capsys)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 1, "no NVIDIA driver is here"),
        (["--slots", "2"], 2, GPUS),
        (["--nodes", "1"], 2, GPUS),
    ],
)
def test_gpus_are_offered_only_where_there_are_any(
    gangline: Runner, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    ran = gangline("up", "--data-dir", str(tmp_path / "new"), "--gpus", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_data_directory_may_stand_before_the_command(
    gangline: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def stop(settings: PlatformSettings, *_: object, **__: object) -> Platform:
        raise CliError(f"would use {settings.data_dir}")

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("gangline.local.platform.Platform", stop)
    named = ("--data-dir", str(tmp_path / "named"))
    ran = gangline(*named, "up") if place == "before" else gangline("up", *named)
    assert f"would use {tmp_path / 'named'}" in ran.err


@pytest.mark.parametrize(("slots", "offered"), [(3, "3"), (None, "")])
def test_agents_offer_slots_or_what_the_machine_has(
    tmp_path: Path, slots: int | None, offered: str
) -> None:
    platform = Platform(PlatformSettings(tmp_path, nodes=2, slots=slots))
    agents = platform._agents({})
    assert [agent.env["GANGLINE_SLOTS"] for agent in agents] == [offered] * 2
