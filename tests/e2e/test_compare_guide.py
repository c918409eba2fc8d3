"""The commands of docs/guides/compare.md on the real platform; a run reproduced is the same."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gangline.sdk import Gangline, connect
from support.fixtures.platform import RunningPlatform
from support.harnesses.cli_run import Ran, runner
from support.waiting import wait_until

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "guides" / "compare.md").read_text(encoding="utf-8")
LINES = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
JOB = ROOT / "examples" / "metrics-script" / "job.yaml"


def losses(client: Gangline, run_id: str) -> list[tuple[int, float]]:
    """All ten of a run, by step."""

    def whole() -> list[tuple[int, float]] | None:
        points = [(p.step, p.value) for c in client.curves(run_id, ["loss"]) for p in c.points]
        return points if len(points) == 10 else None

    return wait_until("the losses in history", whole)


def test_the_guide(
    platform: RunningPlatform,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = runner(capsys)

    def gangline(*arguments: str) -> Ran:
        return run("--data-dir", str(platform.data_dir), *arguments)

    with connect(platform.client.url, platform.client.token) as client:
        ids = []
        for lr in ("0.05", "0.1"):
            settings = (f"hyperparameters.lr={lr}", "hyperparameters.steps=10")
            sets = [part for setting in settings for part in ("--set", setting)]
            ids.append(gangline("submit", str(JOB), "-y", "--wait", *sets).out.strip())
        first, other = ids
        before, after = losses(client, first), losses(client, other)
        assert before != after
        shown = {}
        for line in LINES:
            words = shlex.split(line.replace("$RUN", first).replace("$OTHER", other))
            shown[line] = gangline(*words[1:])
            assert shown[line].code == 0, (line, shown[line].err)
        by_params, *_ = shown.values()
        assert first in by_params.out
        assert other not in by_params.out
        compared = next(ran for line, ran in shown.items() if "--png" in line)
        assert re.search(r"hyperparameters.lr +0.05 +0.1", compared.out)
        assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "runs.html").read_text()
        again = next(ran for line, ran in shown.items() if line.endswith("$RUN -y"))
        assert "seed: the run had none" in again.err
        client.wait(again.out.strip())
        assert losses(client, again.out.strip()) == before, "bit for bit"
