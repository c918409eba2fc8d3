"""Folders that programs filled are deleted, whatever they hold."""

from __future__ import annotations

import os
from pathlib import Path

from gangline_worker.agent.host.trees import delete_tree


def deepen(folder: Path, levels: int) -> None:
    """Folders in each other, deeper than a path may be long."""
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(os.open("file", os.O_CREAT, dir_fd=handle))
    os.close(handle)


def test_a_deep_folder_is_deleted(tmp_path: Path) -> None:
    top = tmp_path / "job"
    for name in ("a", "b"):
        (top / name).mkdir(parents=True)
        deepen(top / name, 2500)
    delete_tree(top)
    assert not top.exists()


def test_links_are_deleted_and_not_followed(tmp_path: Path) -> None:
    other, top = tmp_path / "other", tmp_path / "job"
    other.mkdir()
    (other / "file").touch()
    top.mkdir()
    (top / "link").symlink_to(other)
    os.mkfifo(top / "fifo")
    (tmp_path / "outer").symlink_to(other)
    delete_tree(top)
    delete_tree(tmp_path / "outer")
    delete_tree(tmp_path / "missing")
    assert (other / "file").exists()
    assert not top.exists()
