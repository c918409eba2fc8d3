"""Processes of several files end with the last file that shares them."""

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

@pytest.fixture(scope="session")
def chromium():
    note("open")
    yield note
    note("closed")
""",
    "e2e/test_a.py": "def test(platform): platform('a')",
    "e2e/test_b.py": "def test(client): client('b')",
    "e2e/test_page_1.py": "def test(chromium): chromium('page')\ndef test_b(): pass",
    "e2e/test_page_2.py": "def test(chromium): chromium('page')",
    "e2e/test_then.py": "def test(client): client('then')",
    "unit/test_c.py": "def test(): open('notes', 'a').write('c ')",
}


def test_what_files_share_ends_after_the_last_of_them(tmp_path: Path) -> None:
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
        "begin", "a", "b", "open", "page", "page", "closed", "then", "close", "end", "c",
    ]  # fmt: skip
