"""A gang runs in a container image: the image's files and settings, and nothing of the node.

With `test_isolation_access.py` and `test_isolation_processes.py` on one node: see
`support.fixtures.isolation`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from textwrap import dedent

import pytest

from gangline_schemas.events.scheduling import GangAllocated, ReleaseReason
from gangline_schemas.events.workers import ExitReason
from support.builders.images import layer, of_machine
from support.fakes.oci_registry import OciRegistry
from support.fixtures.isolation import OURS, SECRET, Stand, Victim

TOOLS = ("/bin/sh", "/bin/cat", "/bin/ls", "/usr/bin/id", "/usr/bin/env", "/bin/sleep")
BASE = (
    "root/",
    ("etc/release", b"of the image\n"),
    ("opt/hidden", b"of a lower layer\n"),
    ("opt/data", b"old\n"),
)
UPPER = ("opt/.wh.hidden", ("opt/data", b"new\n"), ("srv/app/file", b"in the workdir\n"))


@pytest.fixture(scope="module")
def hub() -> Iterator[OciRegistry]:
    with OciRegistry() as made:
        made.push(
            "sh",
            [of_machine(*TOOLS), layer(*BASE), layer(*UPPER)],
            Env=["PATH=/bin:/usr/bin", "OF_IMAGE=yes", "LD_LIBRARY_PATH=/nowhere", "HOME=/root"],
            WorkingDir="/srv/app",
            Entrypoint=["/bin/sh", "-c"],
            Cmd=["echo the image speaks; cat file; echo end"],
        )
        yield made


@pytest.fixture
def images(stand: Stand) -> Stand:
    if not stand.node.runs_images:
        pytest.skip("this machine's agent cannot run images")
    return stand


def start(stand: Stand, hub: OciRegistry, tag: str = "sh", **spec: object) -> GangAllocated:
    return stand.harness.allocate(
        stand.node,
        job_id=f"job-{next(stand.numbers)}",
        team=OURS,
        image=f"{hub.host}/tests/small:{tag}",
        **{"gpus": [1], **spec},
    )


def ended(stand: Stand, gang: GangAllocated) -> list[str]:
    """The lines of its rank 0, which finished; the last one of its standard output is "end"."""
    exited = stand.exit(gang.job_id)
    assert exited.reason is ExitReason.FINISHED, (exited, stand.lines(gang.job_id))
    stand.harness.wait(lambda: "end" in stand.lines(gang.job_id))
    stand.harness.release(gang, ReleaseReason.SUCCEEDED)
    return [line for line in stand.lines(gang.job_id) if line != "end"]


def test_its_files_settings_and_folders(images: Stand, hub: OciRegistry) -> None:
    gang = start(images, hub, run=dedent("""
        pwd; cat file /etc/release /opt/data; ls /opt; id -u
        echo env $OF_IMAGE $RANK of $WORLD_SIZE $LD_LIBRARY_PATH $GANGLINE_JOB_ID
        for folder in "$HOME" "$TMPDIR" "$GANGLINE_CHECKPOINT_DIR" /tmp /dev/shm /var/tmp; do
            echo text > "$folder/written" && cat "$folder/written"
        done
        [ -S "$GANGLINE_AGENT_SOCKET" ] && echo socket
        echo x 2> /dev/null > /etc/release || echo read-only
        echo end
    """))  # fmt: skip
    lines = ended(images, gang)
    uid = next(line for line in lines if line.isdigit())
    assert int(uid) >= 1_900_000_000, "ranks run as their team's user"
    assert lines == [
        "/srv/app", "in the workdir", "of the image", "new", "data", uid,
        f"env yes 0 of 1 /nowhere {gang.job_id}", *["text"] * 6, "socket", "read-only",
    ]  # fmt: skip


def test_nothing_of_the_node_is_there(images: Stand, hub: OciRegistry, victim: Victim) -> None:
    node = images.harness.folder
    gang = start(
        images, hub,
        run=f"ls / /root; ls {sys.prefix} {node} {node}/node; ls /proc | cat; cat /proc/mounts;"
        f" cat {' '.join(map(str, victim.known['files']))}; cat /proc/*/environ; echo; echo end",
    )  # fmt: skip
    lines = ended(images, gang)
    told = "\n".join(lines)
    assert {"srv", "opt", "etc"} <= set(lines)
    assert not {"boot", "home", "mnt", "usr.sbin"} & set(lines)
    assert f"ls: cannot access '{sys.prefix}': No such file or directory" in lines
    for hidden in (SECRET, "VICTIMS_WORD", "agent.lock", "spool", "users.json", "AGENT_ONLY"):
        assert hidden not in told
    pids = [int(line) for line in lines if line.isdigit()]
    assert len(pids) < 10, "the sandbox's first process, the rank and its children"


def test_the_command_of_the_image(images: Stand, hub: OciRegistry) -> None:
    assert ended(images, start(images, hub)) == ["the image speaks", "in the workdir"]


def test_shared_memory_is_half_of_the_gangs_memory(images: Stand, hub: OciRegistry) -> None:
    node = images.node
    lines = ended(images, start(images, hub, gpus=[1, 2], run="cat /proc/mounts; echo end"))
    sizes = {
        folder: int(options.split("size=")[1].split("k")[0]) << 10
        for _, folder, kind, options, *_ in map(str.split, lines)
        if kind == "tmpfs" and folder in {"/dev/shm", "/tmp"}
    }
    gang_bytes = 2 * int(node.memory_gb / len(node.gpus) * 1024**3)
    assert sizes["/dev/shm"] == pytest.approx(gang_bytes / 2, rel=0.01)
    assert sizes["/tmp"] == pytest.approx(gang_bytes / 4, rel=0.01)


def test_all_output_and_the_exit_code(images: Stand, hub: OciRegistry) -> None:
    gang = start(images, hub, gpus=[1, 2], run="cat /opt/data; printf last; exit 7")
    assert images.exit(gang.job_id).exit_code == 7
    images.harness.wait(lambda: images.lines(gang.job_id) == ["new", "last"])
    images.harness.release(gang, ReleaseReason.FAILED)


@pytest.mark.parametrize(
    ("tag", "command", "code", "says"),
    [
        ("sh", ["no-such-program"], 127, "command not found: no-such-program"),
        ("none", ["/bin/sh"], 78, "image not found: "),
    ],
)
def test_failures_have_names(
    images: Stand, hub: OciRegistry, tag: str, command: list[str], code: int, says: str
) -> None:
    gang = start(images, hub, tag, command=command)
    exited = images.exit(gang.job_id)
    assert exited.exit_code == code
    assert says in exited.message
    images.harness.release(gang, ReleaseReason.FAILED)


def test_a_killed_rank_starts_again_in_the_same_image(images: Stand, hub: OciRegistry) -> None:
    run = "echo attempt $TORCHELASTIC_RESTART_COUNT; cat /etc/release; exec sleep 1000"
    gang = start(images, hub, run=run)
    images.harness.wait(lambda: len(images.lines(gang.job_id)) == 2)
    asked = len(hub.requests)
    os.kill(images.pid(gang.job_id), signal.SIGKILL)
    assert images.exit(gang.job_id).signal == signal.SIGKILL
    images.harness.release(gang, ReleaseReason.RESTARTING)
    again = images.harness.allocate(
        images.node, job_id=gang.job_id, team=OURS, attempt=2, gpus=[1],
        image=gang.spec.image, run=run,
    )  # fmt: skip
    images.harness.wait(lambda: len(images.lines(gang.job_id)) == 4)
    assert images.lines(gang.job_id)[2:] == ["attempt 1", "of the image"]
    assert len(hub.requests) == asked, "the layers are on the node"
    images.harness.release(again, ReleaseReason.CANCELLED)
    images.harness.wait(lambda: len(images.harness.exits(2)) >= 2)
