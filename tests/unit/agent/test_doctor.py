"""The checks of a machine that may become a node: what each finds, and the way out it names."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gangline_worker.agent import doctor
from gangline_worker.agent.doctor import Machine
from gangline_worker.agent.runtime.containers import ENGINES
from support.builders.cdi import cdi_text, gpu_machine


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response_only(401)
        self.send_header("Date", formatdate(5000.0, usegmt=True))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """A gateway at 5000 seconds of Unix."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def test_this_machine_is_examined_without_a_failure(tmp_path: Path, server: str) -> None:
    found = {check.name: check for check in doctor.examine(Machine(tmp_path, slots=1))}
    for engine in ENGINES:  # of machines where the agent cannot run images
        found.pop(engine, None)
    assert list(found) == [
        "Python", "namespaces", "cgroups", "disk", "/dev/shm", "memlock", "open files", "GPUs",
        "address", "ports",
    ]  # fmt: skip
    assert [name for name, check in found.items() if check.state == "failed"] == []
    assert all(check.fix for check in found.values() if check.state != "ok")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "state", "said"),
    [
        ('[ "$1" = --version ] && echo podman version 4.3.1', "ok", "images run"),
        (
            'case "$*" in --version) echo podman version 4.3.1;; *--memory*) exit 125;; esac',
            "ok",
            "images run, without limits of memory and CPUs",
        ),
        (
            "echo podman version 3.0.1",
            "failed",
            "no images: podman version 3.0.1: 4.0 or later is needed",
        ),
    ],
)
def test_podman_is_tried_if_it_is_to_run_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, state: str, said: str
) -> None:
    program = tmp_path / "podman"
    program.write_text(f"#!/bin/sh\n{script}\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("GANGLINE_IMAGE_RUNTIME", "podman")
    found = {check.name: check for check in doctor.examine(Machine(tmp_path, slots=1))}
    assert (found["podman"].state, found["podman"].detail) == (state, said)
    assert bool(found["podman"].fix) == (state == "failed")


@pytest.mark.parametrize(
    ("now", "state", "said"),
    [(5000.6, "ok", "agrees"), (5010.0, "failed", "ahead of"), (4990.0, "failed", "behind")],
)
def test_the_clock_is_compared_with_the_servers(
    tmp_path: Path, server: str, now: float, state: str, said: str
) -> None:
    found = doctor._server(Machine(tmp_path, server=server), lambda: now)
    assert (found.name, found.state) == ("clock", state)
    assert said in found.detail
    assert bool(found.fix) == (state == "failed")


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    found = doctor._server(Machine(tmp_path, server="http://127.0.0.1:1"), lambda: 0.0)
    assert (found.name, found.state) == ("server", "failed")
    assert "http://127.0.0.1:1" in found.detail


@pytest.mark.parametrize(
    ("address", "server", "state"),
    [
        ("127.0.0.1", "http://127.0.0.1:8443", "ok"),
        ("127.0.0.1", "https://192.0.2.7:8443", "failed"),
        ("127.0.0.1", None, "warning"),
        ("203.0.113.9", None, "failed"),
    ],
)
def test_an_address_must_be_this_machines_and_reachable(
    tmp_path: Path, address: str, server: str | None, state: str
) -> None:
    assert doctor._address(Machine(tmp_path, address=address, server=server)).state == state


def test_without_an_address_it_is_that_of_the_route_to_the_server(
    tmp_path: Path, server: str
) -> None:
    assert doctor.address_of(Machine(tmp_path, server=server)) == "127.0.0.1"


@pytest.mark.parametrize(
    ("most", "state"), [(1024, "failed"), (20_000, "warning"), (1 << 20, "ok")]
)
def test_open_files(most: int, state: str) -> None:
    assert doctor._files(most).state == state


def test_little_shared_memory_is_a_warning() -> None:
    assert (doctor._shm(64 << 20).state, doctor._shm(8 << 30).state) == ("warning", "ok")


def test_files_of_cdi_must_have_each_gpu(tmp_path: Path) -> None:
    assert list(doctor._cdi((), [tmp_path])) == []
    (none,) = doctor._cdi((0,), [tmp_path])
    assert (none.state, "gets all GPUs" in none.detail) == ("ok", True)
    gpu_machine(tmp_path / "machine")
    (tmp_path / "nvidia.yaml").write_text(cdi_text(tmp_path / "machine"), encoding="utf-8")
    (found,) = doctor._cdi((0, 1), [tmp_path])
    assert (found.state, found.detail) == (
        "ok",
        "a gang in an image gets its own of 2 GPUs; hooks that are not run: enable-cuda-compat",
    )
    (missing,) = doctor._cdi((0, 7), [tmp_path])
    assert (missing.state, missing.detail.split(":")[0]) == (
        "failed",
        "nvidia.com/gpu=7 is in no file",
    )
    assert missing.fix.startswith("write it again: nvidia-ctk cdi generate")


def test_memory_that_can_be_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    found = doctor._memlock()
    assert (found.state, "LimitMEMLOCK" in found.fix) == ("warning", True)


def test_files_of_cdi_are_looked_for_where_the_agent_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_CDI_FOLDERS", f"{tmp_path / 'a'}, {tmp_path / 'b'}")
    assert doctor._cdi_folders() == (tmp_path / "a", tmp_path / "b")
    monkeypatch.delenv("GANGLINE_CDI_FOLDERS")
    assert doctor._cdi_folders() == (Path("/etc/cdi"), Path("/var/run/cdi"))
