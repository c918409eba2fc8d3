"""`gangline data prepare` killed with -9 at any moment continues to the same bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from gangline_storage import LocalStore
from gangline_worker.data.manifest import read_manifest
from gangline_worker.data.prepare import Sources
from gangline_worker.data.verify import verify
from support.builders.data import flip, text_bytes

DEADLINE_S = 120.0


def command(inputs: Path, out: Path) -> list[str]:
    program = Path(sys.executable).with_name("gangline")
    return [str(program), "data", "prepare", str(inputs), "--out", str(out), "--shard-mb", "1"]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 12 MB of all kinds: about 24 shards."""
    folder = tmp_path_factory.mktemp("inputs")
    chance = random.Random(4)
    (folder / "a.txt").write_bytes(text_bytes(3_000_000, seed=1))
    with (folder / "b.jsonl").open("w") as lines:
        for number in range(6000):
            text = f"line {number} " * chance.randrange(1, 100)
            lines.write(json.dumps({"id": number, "text": text}) + "\n")
    cells = [f"cell {number} " * chance.randrange(1, 100) for number in range(8000)]
    parquet.write_table(pa.table({"text": cells}), folder / "c.parquet", row_group_size=500)
    return folder


@pytest.fixture(scope="module")
def undisturbed(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "corpus"
    subprocess.run(command(inputs, out), check=True, capture_output=True, timeout=DEADLINE_S)
    return out


def kill_when(process: subprocess.Popen[bytes], out: Path, files: int) -> bool:
    """SIGKILL once so many files are in the folder; False if it had ended before."""
    ends = time.monotonic() + DEADLINE_S
    while process.poll() is None:
        assert time.monotonic() < ends
        if out.exists() and len(list(out.iterdir())) >= files:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return True
    return False


@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.nightly)])
def test_killed_again_and_again_it_gives_the_same_bytes(
    inputs: Path, undisturbed: Path, tmp_path: Path, kills: int
) -> None:
    out = tmp_path / "corpus"
    files_at_end = 3 * len(list(undisturbed.glob("*.tok")))
    killed = too_late = 0
    while killed < kills:
        with subprocess.Popen(command(inputs, out), stderr=subprocess.DEVNULL) as process:
            # Each time a little further: in the midst of writing tokens, offsets or a record.
            found = kill_when(process, out, 1 + (killed + 1) * files_at_end // (kills + 1))
        if found and not (out / "manifest.json").exists():
            killed += 1
        else:  # the test looked too late, on a busy machine: once more from the start
            shutil.rmtree(out)
            too_late += 1
            assert too_late <= kills
    ended = subprocess.run(
        command(inputs, out), check=True, capture_output=True, text=True, timeout=DEADLINE_S
    )
    name = read_manifest(undisturbed).name
    assert name in ended.stdout
    ours, theirs = content(out), content(undisturbed)
    profiles = [json.loads(one.pop("profile.json")) for one in (ours, theirs)]
    assert profiles[0]["profile"] == profiles[1]["profile"]
    assert ours == theirs
    assert Sources.decode(ours["sources.json"]).inputs
    assert verify(LocalStore(out), read_manifest(out)) == []


def test_the_command_passes_on_codes_and_output(undisturbed: Path, tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("gangline"))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            cwd=tmp_path,
        )

    shown = run("--json", "data", "show", str(undisturbed))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert json.loads(shown.stdout)["name"] == read_manifest(undisturbed).name
    bad = tmp_path / "-bad.jsonl"  # a name like an option
    bad.write_text('{"text": "good"}\n{"text"}\n')
    refused = run("data", "prepare", "--out", "out", "--field", "text", "--", bad.name)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith(f"error: {bad}:2: not JSON")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in undisturbed.iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    flip(damaged / "shard-000001.tok", 5)
    found = run("data", "verify", str(damaged))
    assert found.returncode == 66
    assert "shard-000001.tok block 0: holds other bytes" in found.stdout
