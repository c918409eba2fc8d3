"""`gangline pipeline download`: files below the folder, verified; wrong answers of the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangline_storage import digest_bytes
from support.fakes.stub_gateway import Reply, Stub, problem
from support.harnesses.cli_run import Runner

PLACE = "/v1/pipeline-runs/p-1/steps/train/outputs/model"
TEXT = "weights"
ARGUMENTS = ("pipeline", "download", "p-1", "train.model", "--to")


def listed(path: str) -> dict[str, Any]:
    file = {"path": path, "size_bytes": len(TEXT), "xxh3": digest_bytes(TEXT.encode())}
    return {"digest": "0" * 32, "files": [file]}


def test_files_are_written_below_the_folder_also_if_the_gateway_says_later(
    stub: Stub, gangline: Runner, tmp_path: Path
) -> None:
    stub.on("GET", PLACE, listed("deep/weights"))
    stub.on("GET", f"{PLACE}/content", problem(429, "too-many", "later"), Reply(page=TEXT))
    done = gangline(*ARGUMENTS, str(tmp_path / "to"))
    assert done.code == 0, done.err
    assert (tmp_path / "to" / "deep" / "weights").read_text() == TEXT


def test_a_file_that_is_not_as_listed_is_not_left(
    stub: Stub, gangline: Runner, tmp_path: Path
) -> None:
    stub.on("GET", PLACE, listed("weights"))
    stub.on("GET", f"{PLACE}/content", Reply(page="other"))
    done = gangline(*ARGUMENTS, str(tmp_path / "to"))
    assert done.code != 0
    assert "damaged in the store" in done.err
    assert [*(tmp_path / "to").iterdir()] == []


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "a//x", "a\\x"])
def test_a_path_that_leaves_the_folder_is_refused(
    stub: Stub, gangline: Runner, tmp_path: Path, path: str
) -> None:
    stub.on("GET", PLACE, listed(path))
    stub.on("GET", f"{PLACE}/content", Reply(page=TEXT))
    done = gangline(*ARGUMENTS, str(tmp_path / "to"))
    assert done.code != 0
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "to").exists()
