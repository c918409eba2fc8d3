"""A standby of an image's Python becomes a rank like a fresh process, without the agent's code.

Run by this Python, without an image: in one see test_isolation_image_restarts.py.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.isolation.cold_start import Launch
from gangline_worker.agent.warm import image_standby
from gangline_worker.agent.warm.image_standby import ImageStandby, image_arguments
from gangline_worker.agent.warm.process import WarmRank
from gangline_worker.agent.warm.rank import WarmRequest
from support.harnesses.warm_ranks import PROBE, Ranks
from support.waiting import until

NEEDED = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "LANG": "C.UTF-8"}


class OneStandby:
    """A `WarmStart` with one standby for each rank, which it waits for.

    It imports the `torch` of this environment, or else a small one, in a tenth of the time.
    """

    pids = ()

    def __init__(self, folder: Path, *, small: bool = True, **environment: str) -> None:
        started = {**NEEDED, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **environment}
        if small:
            started["PYTHONPATH"] = small_torch(folder / "packages")
        launch = Launch(RankKey(GangKey("job", 1), 0), ("python", "x.py"), started, folder)
        self.standby = ImageStandby(launch, folder)
        self.variables = {name: started[name] for name in started if name == "PYTHONPATH"}

    def rank(self, request: WarmRequest, sandbox: int | None) -> WarmRank | None:
        until(lambda: self.standby.is_ready() or not self.standby.is_fit)
        return self.standby.rank(request)


@pytest.fixture(autouse=True)
def _as_quick_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_standby, "_NICER_BY", 0)


def small_torch(site: Path) -> str:
    package = site / "torch"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("def set_num_threads(number): pass")
    return str(site)


def ranks_of(folder: Path, **standby: object) -> tuple[Ranks, dict[str, str]]:
    """Ranks that start warm, and the variables that they must have."""
    warm = OneStandby(folder, **standby)  # type: ignore[arg-type]
    return Ranks(folder, warm), warm.variables  # type: ignore[arg-type]


@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_it_is_like_a_fresh_process(tmp_path: Path, small: bool) -> None:
    (tmp_path / "probe.py").write_text(dedent(PROBE))
    ranks, needed = ranks_of(tmp_path, small=small)
    found = {}
    for number, warm in enumerate((True, False)):
        command = ["python", "probe.py", "a", "b"]
        ranks.start(number, command, warm=warm, COLOUR="green", **needed)
        assert ranks.end(number).code == 0, ranks.lines
        report, *_ = [line for line in ranks.lines[number] if line[:1] == "{"]
        found[warm] = json.loads(report)
        assert "to stderr" in ranks.lines[number]
    differs = {
        name: (found[True][name], found[False][name])
        for name in found[True]
        if found[True][name] != found[False][name]
    }
    assert differs == {"warm": (True, False)}


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("import sys; print('last', end=''); sys.exit(7)", 7, "last"),
        ("raise ValueError('of the job')", 1, "ValueError: of the job"),
        ("import atexit; atexit.register(print, 'at the end')", 0, "at the end"),
    ],
)
def test_its_end_is_that_of_the_program(tmp_path: Path, program: str, code: int, said: str) -> None:
    (tmp_path / "train.py").write_text(program)
    ranks, needed = ranks_of(tmp_path)
    ranks.start(0, ["python", "train.py"], **needed)
    assert ranks.end(0).code == code
    assert ranks.lines[0][-1] == said
    assert not any("fresh.py" in line or "/proc/self/fd" in line for line in ranks.lines[0])


def test_a_module_of_the_job_that_it_has_imported_already_is_the_jobs(tmp_path: Path) -> None:
    ranks, needed = ranks_of(tmp_path)
    (tmp_path / "tempfile.py").write_text("whose = 'of the job'")
    (tmp_path / "train.py").write_text(
        "import sys, tempfile; print(tempfile.whose, sys.argv, 'torch' in sys.modules)"
    )
    ranks.start(0, ["python", "train.py", "a"], **needed)
    assert ranks.end(0).code == 0
    assert ranks.lines[0] == ["of the job ['train.py', 'a'] False"]


def test_it_starts_cold_with_other_variables_for_its_start(tmp_path: Path) -> None:
    ranks, needed = ranks_of(tmp_path)
    (tmp_path / "train.py").write_text("import sys; print('torch' in sys.modules)")
    ranks.start(0, ["python", "train.py"], PYTHONHASHSEED="1", **needed)
    assert ranks.end(0).code == 0
    assert ranks.lines[0] == ["False"]


def test_a_python_without_torch_is_of_no_use(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError")
    standby = OneStandby(tmp_path, small=False, PYTHONPATH=str(tmp_path)).standby
    until(lambda: standby.is_ready() or not standby.is_fit)
    assert standby.rank(WarmRequest(("x.py",), {}, str(tmp_path), ())) is None
    standby.stop()


def test_what_it_starts_with_has_no_secrets(tmp_path: Path) -> None:
    standby = OneStandby(tmp_path, API_KEY="secret").standby
    until(standby.is_ready)
    shown = Path(f"/proc/{standby.pid}/environ").read_bytes()
    assert b"PYTHONPATH" in shown
    assert b"API_KEY" not in shown
    standby.stop()


def test_it_gives_way_until_it_is_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    monkeypatch.setattr(image_standby, "_NICER_BY", 1)
    standby = OneStandby(tmp_path).standby
    assert os.getpriority(os.PRIO_PROCESS, standby.pid) == own + 1
    until(standby.is_ready)
    assert os.getpriority(os.PRIO_PROCESS, standby.pid) == own
    standby.stop()


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (("python", "train.py", "1"), ("train.py", "1")),
        (("/opt/conda/bin/python3.12", "-m", "a"), ("-m", "a")),
        (("python", "-c", "pass"), None),
        (("sh", "train.py"), None),
        (("python3-config", "a.py"), None),
    ],
)
def test_which_commands_of_an_image_can_be_warm(
    command: tuple[str, ...], arguments: tuple[str, ...] | None
) -> None:
    assert image_arguments(command) == arguments
