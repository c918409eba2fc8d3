"""The command lines for Apptainer, its variables, and why it cannot be used, without Apptainer."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gangline_worker.agent.host.cdi import GivenDevices, SharedFile
from gangline_worker.agent.isolation.groups import GangLimits
from gangline_worker.agent.runtime import apptainer
from gangline_worker.agent.runtime.apptainer import Apptainer
from support.builders.engines import CONTAINER as COMMON
from support.builders.engines import node_with_gpu

CONTAINER = replace(COMMON, environment={**COMMON.environment, "KEY": "of the image"})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "images" / "root"
    made.mkdir(parents=True)
    return made


@pytest.fixture(autouse=True)
def of_node(monkeypatch: pytest.MonkeyPatch) -> None:
    node_with_gpu(monkeypatch, apptainer, resource.RLIM_INFINITY)
    monkeypatch.setattr(apptainer, "_HOSTS", str(Path(__file__)))


def test_the_command_line_as_root(place: Path) -> None:
    words = Apptainer(place, is_root=True).command(CONTAINER, ["python3", "host.py"])

    run = words.index("prlimit")
    assert words[4:run] == [
        str(place), str(2 << 30), str(4 << 30), "", "/srv/app", "",
        "/data/images/layers", "low/files:high/files",
    ]  # fmt: skip
    assert words[run:] == [
        "prlimit", "--nofile=1024:1024", "--nproc=300:300", "--memlock=unlimited:unlimited",
        f"--data={4 << 30}:{4 << 30}", "--core=0:0", "--",
        "apptainer", "--silent", "exec", "--contain", "--no-home", "--cleanenv",
        "--no-eval", "--no-mount", "bind-paths", "--pid", "--no-init", "--ipc", "--no-privs",
        "--security", "uid:1900000007", "--security", "gid:1900000007",
        f"--memory={8 << 30}", f"--memory-swap={8 << 30}", "--pids-limit=300",
        "--bind", f"{place}/shm:/dev/shm", "--bind", f"{place}/tmp:/tmp",
        "--bind", "/dev/nvidia0", "--bind", "/dev/infiniband/uverbs0",
        "--bind", f"{__file__}:{__file__}:ro",
        "--bind", "/lib/libcuda.so:/usr/local/nvidia/lib64/libcuda.so.1:ro",
        "--bind", "/data/work:/data/work",
        f"{place}/root", "python3", "host.py",
    ]  # fmt: skip


def test_the_command_line_without_root(place: Path) -> None:
    container = replace(CONTAINER, owner=None, limits=GangLimits(8 << 30, 2.5))
    words = Apptainer(place, is_root=False, limits=False).command(container, ["true"])

    assert words[:4] == ["unshare", "--user", "--map-root-user", "--"]
    assert words[words.index(str(place)) + 3] == "userxattr,"
    assert "--security" not in words
    assert not [word for word in words if word.startswith(("--memory", "--cpus", "--pids", "--da"))]
    assert "--cpus=2.5" in Apptainer(place, is_root=False).command(container, ["true"])


def test_variables_reach_the_container_outside_of_its_command_line(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_BIND", "/etc")
    monkeypatch.setenv("SINGULARITYENV_X", "y")
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("HOME", "/home/agent")
    monkeypatch.delenv("LANG", raising=False)
    made = Apptainer(place, is_root=True)
    assert made.variables(CONTAINER) == {
        "PATH": "/bin",
        "HOME": "/home/agent",
        "GANGLINE_CONTAINER": "gangline-1-j-2",
        "APPTAINERENV_GANGLINE_CONTAINER": "gangline-1-j-2",
        "APPTAINERENV_PATH": "/opt/bin",
        "APPTAINERENV_A": "b c",
        "APPTAINERENV_KEY": "of the image",
    }
    assert "of the image" not in "".join(made.command(CONTAINER, ["true"]))


def test_a_gang_has_the_devices_that_files_of_cdi_give_it(place: Path) -> None:
    given = GivenDevices(
        nodes=(("/dev/nvidia3", "/dev/nvidia3"),),
        files=(SharedFile("/lib/a.so.1", "/lib/b.so.1"), SharedFile("/run/x", "/run/x", False)),
        links=(("b.so.1", "/lib/b.so"),),
    )
    root = replace(CONTAINER.image, devices=given)
    words = Apptainer(place, is_root=True).command(replace(CONTAINER, image=root), ["true"])

    assert words[9] == "b.so.1\n/lib/b.so"
    binds = [words[at + 1] for at, word in enumerate(words) if word == "--bind"]
    assert binds[2:-1] == [
        "/dev/infiniband/uverbs0", f"{__file__}:{__file__}:ro",
        "/dev/nvidia3", "/lib/a.so.1:/lib/b.so.1:ro", "/run/x:/run/x:rw",
    ]  # fmt: skip


def test_a_device_with_another_name_in_the_container_is_refused(place: Path) -> None:
    given = GivenDevices(nodes=(("/dev/nvidia3", "/dev/nvidia0"),))
    container = replace(CONTAINER, image=replace(CONTAINER.image, devices=given))
    with pytest.raises(OSError, match="cannot show /dev/nvidia3 as /dev/nvidia0"):
        Apptainer(place, is_root=True).command(container, ["true"])


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Programs that do this, alone on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(**scripts: str) -> None:
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)

    return make


RELEASE = "echo apptainer version 1.4.3"
REFUSED = "echo INFO: more >&2; echo 'FATAL:   no user namespace' >&2; exit 255"


@pytest.mark.parametrize(
    ("scripts", "reason"),
    [
        ({}, "there is no program apptainer; install Apptainer"),
        ({"apptainer": RELEASE}, "there is no program unshare; install util-linux"),
        (
            {"apptainer": "echo apptainer version 1.3.6", "unshare": "", "prlimit": ""},
            "apptainer version 1.3.6: 1.4 or later is needed",
        ),
        ({"apptainer": RELEASE, "unshare": REFUSED, "prlimit": ""}, "no user namespace"),
    ],
)
def test_the_reason_why_it_cannot_be_used(
    place: Path, programs: Callable[..., None], scripts: dict[str, str], reason: str
) -> None:
    programs(**scripts)
    assert Apptainer(place, is_root=False).lacking(None) == reason


def test_limits_are_left_out_where_it_has_none(place: Path, programs: Callable[..., None]) -> None:
    refusal = 'case "$*" in *--memory*) exit 255;; esac'
    programs(apptainer=RELEASE, unshare=refusal, prlimit="")
    made = Apptainer(place, is_root=False)
    assert (made.lacking(None), made.limits) == (None, False)


@pytest.mark.parametrize(
    ("code", "said", "lacks"),
    [
        (255, 'exec: "python3": executable file not found in $PATH', True),
        (2, "SyntaxError: invalid syntax", True),
        (255, "container creation failed", False),
        (75, "", False),
    ],
)
def test_a_missing_python_is_known(place: Path, code: int, said: str, lacks: bool) -> None:
    assert Apptainer(place).lacks_python(code, said) is lacks


def test_containers_are_ended_by_name_and_by_prefix(place: Path) -> None:
    started = {
        name: subprocess.Popen(
            [sys.executable, "-S", "-c", "print(flush=True); input()"],
            env={**os.environ, "GANGLINE_CONTAINER": name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in ("gangline-test-a", "gangline-test-ab", "gangline-test2-c", "gangline-test2-d")
    }
    made = Apptainer(place)
    try:
        for process in started.values():
            assert process.stdout is not None
            process.stdout.readline()
        made.end("gangline-test-a", None)
        made.end("gangline-test2-none", started["gangline-test2-d"])
        for name in ("gangline-test-a", "gangline-test2-d"):
            assert started[name].wait(20) == -signal.SIGKILL
        assert started["gangline-test-ab"].poll() is None
        made.end_all("gangline-test-")
        assert started["gangline-test-ab"].wait(20) == -signal.SIGKILL
        assert started["gangline-test2-c"].poll() is None
    finally:
        for process in started.values():
            process.kill()
            process.communicate()
