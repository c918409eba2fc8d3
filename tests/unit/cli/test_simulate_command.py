"""`gangline simulate`: the table, JSON, the picture, and what is said of bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.harnesses.cli_run import Runner, runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return runner(capsys)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "jobs.csv").write_text("when,duration,gpus\n0,100,8\n10,20,8\n20,5,1\n")
    (tmp_path / "nodes.yaml").write_text("nodes: [{count: 2, gpus: 8}]\n")
    trace, cluster = str(tmp_path / "jobs.csv"), str(tmp_path / "nodes.yaml")
    return "simulate", "--trace", trace, "--cluster", cluster, "--column", "submit=when"


def test_a_column_for_each_policy_in_80_columns(run: Runner, files: tuple[str, ...]) -> None:
    done = run(*files, "--policy", "fifo,srtf,gangline")
    assert done.code == 0
    assert done.out.split()[:3] == ["FIFO", "SRTF", "GANGLINE"]
    assert max(len(line) for line in done.out.splitlines()) <= 80
    assert "3 jobs on 16 GPUs in 1 pool" in done.err


def test_json_holds_the_figures(run: Runner, files: tuple[str, ...]) -> None:
    done = run(*files, "--policy", "fifo", "--halve", "--json")
    (figures,) = done.json
    assert (figures["policy"], figures["jobs"], figures["makespan_s"]) == ("fifo", 3, 125.0)


def test_a_picture_is_written(run: Runner, files: tuple[str, ...], tmp_path: Path) -> None:
    assert run(*files, "--policy", "fifo", "--picture", str(tmp_path / "p.png")).code == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


BAD = [
    (("--policy", "best"), 2, "policy best is not known"),
    (("--policy", ","), 2, "no policy is named"),
    (("--column", "gpus"), 2, "give FIELD=COLUMN"),
    (("--column", "gpus=size"), 2, "row 1, field gpus: there is no column size"),
    (("--from", "monday"), 2, "give a day like 2017-10-01"),
    (("--from", "2017-10-01"), 2, "a window needs dates"),
    (("--picture", "p.gif"), 2, "name a .png"),
]


@pytest.mark.parametrize(("options", "code", "said"), BAD, ids=[bad[2] for bad in BAD])
def test_bad_input_is_named(
    run: Runner, files: tuple[str, ...], options: tuple[str, ...], code: int, said: str
) -> None:
    done = run(*files, *options)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
