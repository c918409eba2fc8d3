"""The order of the files of tests: nothing is left out, computing is spread among waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from order import LONGEST, OWN_PLATFORM, SHARED_PLATFORM, SHARING, in_order, scope_of

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


def test_what_computes_is_spread_among_what_waits() -> None:
    computing = [*COMPUTING, *UNIT]
    found = in_order([*BROKER, *E2E, *UNIT, *COMPUTING])
    assert [name for name in found if name not in computing] == [*E2E, *BROKER]
    assert [found.index(name) for name in computing] == [1, 4, 7, 10]


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
        shares = "RunningPlatform" in text and "start_platform" not in text
        assert (scope_of(f"{file}::test") == SHARED_PLATFORM) == shares, file
    assert all((root / file).exists() for file in OWN_PLATFORM)
    assert scope_of("tests/unit/a/test_b.py::test_c[d::e]") == "tests/unit/a/test_b.py"


@pytest.mark.parametrize("shared", SHARING)
def test_files_whose_names_begin_alike_go_to_one_worker(shared: str) -> None:
    assert scope_of(f"{shared}a.py::test_b") == scope_of(f"{shared}b.py::test_a[x]") == shared
    assert len(list(Path(__file__).parents[3].glob(f"{shared}*.py"))) > 1
