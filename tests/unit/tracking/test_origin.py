"""Tags that say where a run comes from: the script, its commit, or a notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gangline.tracking.origin import origin_tags

SOURCE, COMMIT = "mlflow.source.type", "mlflow.source.git.commit"


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_script_has_its_name_and_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert COMMIT not in origin_tags()
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    tags = origin_tags()
    assert tags[COMMIT] == git(tmp_path, "rev-parse", "HEAD")
    assert (tags[SOURCE], tags["mlflow.source.name"]) == ("LOCAL", str(script))


def test_a_notebook_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    tags = origin_tags()
    assert tags[SOURCE] == "NOTEBOOK"
    assert "mlflow.source.name" not in tags, "that is the file of the kernel"
