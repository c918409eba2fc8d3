"""On a worker, processes of several files end with the last file that shares them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
FILES = {
    "conftest.py": """
import pytest

def note(text):
    with open("notes", "a") as file:
        file.write(text + " ")

@pytest.fixture(scope="session")
def platform():
    note("begin")
    yield note
    note("end")

@pytest.fixture(scope="session")
def client(platform):
    yield platform
    note("close")
""",
    "e2e/test_a.py": "def test(platform): platform('a')",
    "e2e/test_b.py": "def test(client): client('b')",
    "unit/test_c.py": "def test(): open('notes', 'a').write('c ')",
}


def test_a_platform_ends_after_the_last_file_that_shares_it(tmp_path: Path) -> None:
    for name, text in FILES.items():
        file = tmp_path / "tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    asked = "-q -p xdist -p order -n 1 --dist loadfile --no-loadscope-reorder tests"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", tmp_path, *asked.split()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "notes").read_text(encoding="utf-8").split() == [
        "begin", "a", "b", "close", "end", "c",
    ]  # fmt: skip
