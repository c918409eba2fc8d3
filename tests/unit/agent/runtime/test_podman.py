"""The command lines for podman, and why it cannot be used, without podman."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gangline_worker.agent.host.cdi import GivenDevices, SharedFile
from gangline_worker.agent.isolation.groups import GangLimits
from gangline_worker.agent.runtime import podman
from gangline_worker.agent.runtime.podman import Podman
from support.builders.engines import CONTAINER, node_with_gpu


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "images" / "root"
    made.mkdir(parents=True)
    return made


@pytest.fixture(autouse=True)
def of_node(monkeypatch: pytest.MonkeyPatch) -> None:
    node_with_gpu(monkeypatch, podman, 64)


def test_the_command_line_as_root(place: Path) -> None:
    words = Podman(place, is_root=True).command(CONTAINER, ["python3", "host.py"])

    run = words.index("podman")
    assert words[4:run] == [
        str(place), str(2 << 30), "", "", "/srv/app", "",
        "/data/images/layers", "low/files:high/files",
    ]  # fmt: skip
    assert words[run:] == [
        "podman", "run", "--rm", "--replace", "--name", "gangline-1-j-2",
        "--label", "gangline.dev/job=job-1",
        "--log-driver", "none", "--http-proxy=false", "--passwd=false",
        "--network", "host", "--uts", "host", "--cap-drop", "all",
        "--security-opt", "no-new-privileges", "--security-opt", "label=disable",
        "--user", "1900000007:1900000007",
        "--ulimit=nofile=1024:1024", "--ulimit=nproc=300:300", "--ulimit=memlock=64:64",
        f"--ulimit=data={4 << 30}:{4 << 30}", "--ulimit=core=0:0",
        f"--memory={8 << 30}", f"--memory-swap={8 << 30}", "--pids-limit=300",
        "--shm-size", str(4 << 30),
        "--tmpfs", f"/tmp:rw,nosuid,nodev,exec,notmpcopyup,mode=1777,size={2 << 30}",
        "--device", "/dev/nvidia0", "--device", "/dev/infiniband/uverbs0",
        "--volume", "/lib/libcuda.so:/usr/local/nvidia/lib64/libcuda.so.1:ro",
        "--volume", "/data/work:/data/work",
        "--env", "PATH=/opt/bin", "--env", "A=b c",
        "--rootfs", f"{place}/root", "python3", "host.py",
    ]  # fmt: skip


def test_a_gang_has_the_devices_that_files_of_cdi_give_it(place: Path) -> None:
    given = GivenDevices(
        nodes=(("/dev/nvidia3", "/dev/nvidia0"),),
        files=(SharedFile("/lib/a.so.1", "/lib/b.so.1"), SharedFile("/run/x", "/run/x", False)),
        links=(("b.so.1", "/lib/b.so"), ("/c", "/d")),
    )
    root = replace(CONTAINER.image, devices=given)
    words = Podman(place, is_root=True).command(replace(CONTAINER, image=root), ["true"])

    assert words[9] == "b.so.1\n/lib/b.so\n/c\n/d"
    devices = words[words.index("--device") : words.index("/data/work:/data/work") - 1]
    assert devices == [
        "--device", "/dev/infiniband/uverbs0", "--device", "/dev/nvidia3:/dev/nvidia0",
        "--volume", "/lib/a.so.1:/lib/b.so.1:ro", "--volume", "/run/x:/run/x:rw",
    ]  # fmt: skip


def test_the_command_line_without_root(place: Path) -> None:
    container = replace(CONTAINER, owner=None, limits=GangLimits(8 << 30, 2.5))
    words = Podman(place, is_root=False, limits=False).command(container, ["true"])

    assert words[:2] == ["podman", "unshare"]
    assert words[words.index(str(place)) + 3] == "userxattr,"
    assert "--user" not in words
    limits = ("--ulimit", "--memory", "--cpu", "--pids")
    assert [word for word in words if word.startswith(limits)] == [
        "--ulimit=nofile=1024:1024", "--ulimit=nproc=9000:9000", "--ulimit=memlock=64:64",
        "--ulimit=core=0:0", "--pids-limit=-1",
    ]  # fmt: skip
    assert "--cpus=2.5" in Podman(place, is_root=False).command(container, ["true"])


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program `podman` that does this, alone on the PATH."""
    folder.mkdir()
    (folder / "podman").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


RELEASE = 'case "$1" in --version) echo podman version 4.3.1; exit 0;; esac'


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo podman version 3.4.4", "podman version 3.4.4: 4.0 or later is needed"),
        ("exit 1", "podman says no release: 4.0 or later is needed"),
        (
            f"{RELEASE}\necho more >&2; echo Error: newuidmap: permission denied >&2; exit 125",
            "newuidmap: permission denied",
        ),
        (f"{RELEASE}\nexit 125", "podman failed"),
    ],
)
def test_the_reason_why_it_cannot_be_used(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    program(tmp_path / "bin", monkeypatch, script)
    assert Podman(place, is_root=False).lacking(None) == reason


def test_it_is_not_there_or_may_not_be_run(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = "there is no program podman; install it, with runc or crun"
    assert Podman(place, is_root=False).lacking(None) == missing
    (tmp_path / "podman").touch(0o755)
    assert str(Podman(place, is_root=False).lacking(None)).startswith("podman cannot run: ")


def test_limits_are_left_out_where_it_has_none(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin", monkeypatch, f'{RELEASE}\ncase "$*" in *--memory*) exit 125;; esac')
    made = Podman(place, is_root=False)
    assert (made.lacking(None), made.limits) == (None, False)
    assert os.listdir(place.parent) == ["root"]  # noqa: PTH208 -- nothing is left of the trial
