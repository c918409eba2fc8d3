"""Which worker takes which files of tests: none is left out, one worker only computes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from xdist.workermanage import WorkerController

from order import LONGEST, OWN_PLATFORM, SHARED_PLATFORM, SHARING, Roles, in_order, scope_of

E2E = [f"tests/e2e/test_{n}.py" for n in range(4)]
BROKER = [f"tests/integration/test_{n}.py" for n in range(4)]
COMPUTING = ["tests/simulation/test_seeds.py", "tests/replay/test_week.py"]
UNIT = ["tests/unit/bus/test_a.py", "tests/unit/worker/test_b.py"]


def test_the_longest_files_are_first_and_every_file_is_there_once() -> None:
    others = [*UNIT, "tests/new/test_c.py", "elsewhere/test_d.py"]
    files = [*BROKER, *COMPUTING, *others, *E2E, LONGEST[2], LONGEST[0]]
    found = in_order(files)
    assert sorted(found) == sorted(files)
    assert found[:2] == [LONGEST[0], LONGEST[2]]


def test_files_of_processes_are_begun_first() -> None:
    found = in_order([*BROKER, *UNIT, *E2E, *COMPUTING])
    assert found == [*E2E, *BROKER, *UNIT, *COMPUTING]


@dataclass(eq=False)
class Node:
    """What the distribution knows of a worker."""

    number: int
    taken: list[int] = field(default_factory=list)
    shutting_down: bool = False

    @property
    def workerinput(self) -> dict[str, str]:
        return {"workerid": f"gw{self.number}"}

    @property
    def gateway(self) -> SimpleNamespace:
        return SimpleNamespace(id=f"gw{self.number}")

    def send_runtest_some(self, tests: list[int]) -> None:
        self.taken += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def distributed(files: list[str], *, workers: int) -> list[list[str]]:
    """What each worker was given, when each in its turn ends a file."""
    tests = [f"{name}::test_{n}" for name in in_order(files) for n in range(3)]
    options = SimpleNamespace(tx=["popen"] * workers, loadscopereorder=False, maxschedchunk=None)
    config = SimpleNamespace(option=options, getvalue=lambda _: options.tx, hook=None)
    roles = Roles(cast(pytest.Config, config), None)
    roles.numnodes = workers
    nodes = [Node(number) for number in range(workers)]
    for node in nodes:
        roles.add_node(cast(WorkerController, node))
    for node in nodes:
        roles.add_node_collection(cast(WorkerController, node), tests)
    roles.schedule()
    done = [0] * workers
    while any(done[n] < len(node.taken) for n, node in enumerate(nodes)):
        for n, node in enumerate(nodes):
            if done[n] < len(node.taken):
                done[n] += 1
                roles.mark_test_complete(cast(WorkerController, node), node.taken[done[n] - 1])
    assert roles.tests_finished
    assert all(node.shutting_down for node in nodes)
    found = [[tests[i].split("::")[0] for i in node.taken] for node in nodes]
    assert sorted(name for names in found for name in names) == sorted(files * 3)
    return [list(dict.fromkeys(names)) for names in found]


def test_the_first_worker_has_the_platforms_and_the_last_one_only_computes() -> None:
    many = [f"tests/unit/bus/test_{n}.py" for n in range(20)]
    first, *between, last = distributed([*E2E, *BROKER, *many], workers=4)
    assert first[:2] == E2E[:2]
    assert all(names[0] in BROKER for names in between)
    assert {*last} <= {*many}
    assert all({*names} & {*many} for names in (first, *between)), "they help in the end"


@pytest.mark.parametrize("files", [BROKER, UNIT, UNIT[:1]])
def test_every_test_is_run_when_there_is_one_kind_alone(files: list[str]) -> None:
    assert {name for names in distributed(files, workers=3) for name in names} == {*files}


def test_two_workers_take_whatever_is_next() -> None:
    first, second = distributed([*BROKER, *COMPUTING], workers=2)
    assert {*first} & {*BROKER}
    assert {*second} & {*BROKER}


def test_the_longest_files_are_there_and_the_first_has_the_platform() -> None:
    root = Path(__file__).parents[3]
    assert [name for name in LONGEST if not (root / name).exists()] == []
    assert scope_of(LONGEST[0]) == SHARED_PLATFORM


def test_files_of_one_kind_alone_keep_their_order() -> None:
    assert in_order(COMPUTING) == COMPUTING
    assert in_order(E2E) == E2E


def test_the_files_that_share_a_platform_go_to_one_worker() -> None:
    root = Path(__file__).parents[3]
    for path in (root / "tests" / "e2e").glob("test_*.py"):
        file = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        common = re.search(r"^def test\w+\(.*\bwatch: LogWatch", text, re.MULTILINE) is not None
        asks = "RunningPlatform" in text or (common and "def watch(" not in text)
        shares = asks and "start_platform" not in text
        assert (scope_of(f"{file}::test") == SHARED_PLATFORM) == shares, file
    assert all((root / file).exists() for file in OWN_PLATFORM)
    assert scope_of("tests/unit/a/test_b.py::test_c[d::e]") == "tests/unit/a/test_b.py"


@pytest.mark.parametrize("shared", SHARING)
def test_files_whose_names_begin_alike_go_to_one_worker(shared: str) -> None:
    assert scope_of(f"{shared}a.py::test_b") == scope_of(f"{shared}b.py::test_a[x]") == shared
    assert len(list(Path(__file__).parents[3].glob(f"{shared}*.py"))) > 1
