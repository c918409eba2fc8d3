"""The root that a container engine gets: an image's layers, in mounts that only it sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gangline_worker.agent.isolation import container_root
from support.builders.images import AS_ROOT

pytestmark = AS_ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("at", "low/lib", "high/lib"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "low/lib/b.so.1").write_text("low")
    (tmp_path / "high/lib/b.so.1").write_text("high")
    (tmp_path / "outside").mkdir()
    return tmp_path


def run(folder: Path, command: str, workdir: str = "", links: str = "", shm: str = "") -> str:
    """What a shell says that runs in place of the engine; its $ROOT is the root."""
    words = [sys.executable, "-I", "-S", str(container_root.__file__), str(folder / "at")]
    words += [str(1 << 20), shm, "", workdir, links, str(folder), "low:high"]
    root = folder / "at/root"
    done = subprocess.run(
        [*words, "/bin/sh", "-c", f"ROOT={root}; {command}"], capture_output=True, check=False
    )
    return (done.stdout + done.stderr).decode().strip()


def test_layers_links_and_folders_are_there(folder: Path) -> None:
    said = run(
        folder,
        'cat "$ROOT/lib/b.so"; echo; cd "$ROOT" && stat -c "%n %a" tmp var/tmp srv/app etc',
        "/srv/app",
        "b.so.1\n/lib/b.so",
    )
    assert said.splitlines() == ["high", "tmp 1777", "var/tmp 1777", "srv/app 755", "etc 755"]


def test_folders_in_memory_have_their_sizes(folder: Path) -> None:
    said = run(folder, f"df -B1 --output=size,target {folder}/at/tmp {folder}/at/shm", shm="65536")
    assert [line.split() for line in said.splitlines()[1:]] == [
        [str(1 << 20), f"{folder}/at/tmp"],
        ["65536", f"{folder}/at/shm"],
    ]


def test_mounts_are_unseen_by_others_and_gone_in_the_end(folder: Path) -> None:
    here = Path("/proc/self/mounts")
    assert str(folder) in run(folder, "cat /proc/self/mounts")
    assert str(folder) not in here.read_text()
    assert list((folder / "at").iterdir()) == []
    assert list((folder / "low").iterdir()) == [folder / "low/lib"]


def test_links_of_an_image_lead_to_nothing_of_the_node(folder: Path) -> None:
    (folder / "high/srv").symlink_to(folder / "outside")
    run(folder, "true", "/srv/app", f"x\n{folder}/outside/link")
    assert list((folder / "outside").iterdir()) == []


def test_a_refused_mount_is_said(folder: Path) -> None:
    (folder / "at").rmdir()
    assert run(folder, "true") == f"Error: {folder}/at: No such file or directory"
