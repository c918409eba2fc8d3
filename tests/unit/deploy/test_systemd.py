"""The units of deploy/systemd: one user a service, restart rules, and systemd's own check."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gangline.local.platform import PARTS
from gangline_service.lifecycle import EXIT_DENIED
from gangline_service.settings import EXIT_USAGE

FOLDER = Path(__file__).parents[3] / "deploy" / "systemd"
UNITS = ("gangline-agent.service", "gangline@.service")


def options(name: str) -> dict[str, str]:
    lines = (FOLDER / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Z]\w+=", line))


def test_each_service_has_a_user_of_its_own() -> None:
    text = (FOLDER / "gangline.sysusers").read_text()
    assert set(re.findall(r"^u gangline-(\S+) ", text, re.MULTILINE)) == set(PARTS)
    assert options("gangline@.service")["User"] == "gangline-%i"


@pytest.mark.parametrize("name", UNITS)
def test_what_no_restart_can_cure_is_not_restarted(name: str) -> None:
    found = options(name)
    assert found["Restart"] == "always"
    assert found["RestartPreventExitStatus"].split() == [str(EXIT_USAGE), str(EXIT_DENIED)]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in FOLDER.iterdir():
        text = unit.read_text().replace("/opt/gangline/bin/", "/usr/bin/")
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
        name = unit.name.replace("@.", "@scheduler.")
        if unit.suffix in {".service", ".target"}:
            (tmp_path / name).write_text(text)
    ran = subprocess.run(
        ["systemd-analyze", "verify", *sorted(map(str, tmp_path.iterdir()))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "gangline" not in ran.stderr, ran.stderr
