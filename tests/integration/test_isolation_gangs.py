"""Isolated gangs train: warm start, rendezvous, checkpoints, stacks, a linked interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from gangline_schemas.checkpoint import CommitRecord, code_key, commit_key, job_prefix
from gangline_schemas.events.scheduling import CheckpointRef, ReleaseReason
from gangline_schemas.events.workers import (
    CheckpointShardWritten,
    ExitReason,
    WorkerExited,
    WorkerStacks,
)
from gangline_schemas.isolation import Isolation
from gangline_storage.local import LocalStore
from support.fixtures.isolation import OURS, SECRET, Stand

TRAINS = """
import os, sys, tempfile
from multiprocessing.connection import Listener
warm = "torch" in sys.modules
import torch
import torch.distributed as dist
from gangline_worker import restore, save
assert tempfile.gettempdir() == os.environ["TMPDIR"]
Listener(family="AF_UNIX").close()
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
found = restore()
start = torch.zeros(4) if found is None else found.state["weights"]
print(warm, os.getuid(), total.item(), start.tolist(), flush=True)
save({"weights": start + 1.5}, step=7 if found is None else found.step + 7)
dist.destroy_process_group()
"""


def bundle(stand: Stand, text: str) -> str:
    """The digest of a code bundle with `train.py`."""
    packed = stand.harness.folder / "packed.tar.gz"
    source = stand.harness.folder / "train.py"
    source.write_text(text)
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(source, arcname="train.py")
    digest = sha256(packed.read_bytes()).hexdigest()
    LocalStore(stand.harness.store).put(code_key(OURS, digest), packed.read_bytes())
    return digest


def test_an_isolated_gang_starts_warm_meets_saves_and_goes_on(stand: Stand) -> None:
    stand.needs(Isolation.USER)
    harness, digest = stand.harness, bundle(stand, TRAINS)
    resume = None
    for attempt in (1, 2):
        gang = harness.allocate(
            stand.node,
            job_id="trains",
            attempt=attempt,
            gpus=[4, 5],
            resume=resume,
            code_bundle=digest,
            command=["python", "train.py"],
        )

        def exits(at: int = attempt) -> list[WorkerExited]:
            found = [item for item in harness.of(WorkerExited) if item.job_id == "trains"]
            return [item for item in found if item.attempt == at]

        harness.wait(lambda: len(exits()) == 2)
        assert {item.reason for item in exits()} == {ExitReason.FINISHED}, exits()
        harness.release(gang, ReleaseReason.RESTARTING)
        parts = sorted(
            (part for part in harness.of(CheckpointShardWritten) if part.attempt == attempt),
            key=lambda part: part.rank,
        )
        assert [part.step for part in parts] == [7 * attempt] * 2
        prefix = job_prefix(OURS, "trains", gang.spec)
        record = CommitRecord(
            job_id="trains",
            attempt=attempt,
            step=7 * attempt,
            world_size=2,
            manifests=tuple(part.manifest for part in parts),
            shards=tuple(part.shards[0] for part in parts),
            committed_at=datetime.now(UTC),
        )
        key = commit_key(prefix, attempt, 7 * attempt)
        LocalStore(harness.store).put(key, record.encode(), if_absent=True)
        resume = CheckpointRef(
            job_id="trains", attempt=attempt, step=7 * attempt, world_size=2, commit_key=key
        )
    written = [line.split(" ", 2) for line in stand.lines("trains") if line.startswith("True")]
    assert [text for _, _, text in written] == [
        "3.0 [0.0, 0.0, 0.0, 0.0]",
        "3.0 [1.5, 1.5, 1.5, 1.5]",
    ], stand.lines("trains")
    users = {user for _, user, _ in written}
    assert len(users) == 1
    assert users != {str(os.getuid())}


def test_the_stacks_of_an_isolated_gang_are_read(stand: Stand) -> None:
    stand.needs(Isolation.USER)
    gang = stand.start("""
        import time
        def never_returns():
            print("hangs", flush=True)
            time.sleep(600)
        never_returns()
    """)
    stand.harness.wait(lambda: stand.lines(gang.job_id) == ["hangs"])
    stand.harness.fail_as_hung(gang)
    stand.harness.wait(lambda: bool(stand.harness.of(WorkerStacks)))
    (stacks,) = stand.harness.of(WorkerStacks)
    assert "never_returns" in stacks.stacks, stacks


CHAINED = """
import json, sys
from pathlib import Path
from gangline_schemas.isolation import Isolation
from gangline_worker.agent.isolation.groups import GangLimits
from gangline_worker.agent.isolation.isolator import Bounds, IsolationMissing, Isolator
from gangline_worker.agent.isolation.cold_start import Launch, start_cold
from gangline_worker.agent.decide.keys import GangKey, RankKey
data, closed = Path(sys.argv[1]), Path(sys.argv[2])
(data / "sockets").mkdir(parents=True)
isolator = Isolator(data, data / "sockets", [], Bounds(range(1_900_000_000, 1_900_000_010), 500))
try:
    isolator.settle(Isolation.USER)
except IsolationMissing as error:
    because = str(error)
isolator.settle(Isolation.NAMESPACES)
gang = GangKey("chained", 1)
isolator.enter(gang, [], GangLimits(1 << 30), lambda begin: begin())
looks = "import json, os, sys; print(json.dumps([os.listdir(path) for path in sys.argv[1:]]))"
launch = Launch(
    RankKey(gang, 0),
    ("python", "-c", looks, str(closed), str(closed / "links")),
    {"PATH": str(Path(sys.executable).parent)},
    Path("/"),
    isolator.confinement(gang, isolator.owner("nlp"), 1 << 30),
)
with start_cold(launch) as rank:
    said, complaint = rank.communicate()
isolator.leave(gang)
print(json.dumps({"because": because, "said": said.decode(), "complaint": complaint.decode()}))
"""


def test_an_interpreter_behind_links_in_a_closed_folder_is_there_and_nothing_beside_it(
    stand: Stand, open_folder: Path
) -> None:
    stand.needs(Isolation.NAMESPACES)
    closed, real = open_folder / "closed", Path(sys.executable).resolve()
    packages = closed / "env" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    for made in (packages, closed / "env" / "bin", closed / "links", closed / "private"):
        made.mkdir(parents=True)
    closed.chmod(0o700)
    (closed / "links" / "secret").write_text(SECRET)
    (closed / "env" / "pyvenv.cfg").write_text(f"home = {real.parent}\n")
    (packages / "all.pth").write_text("\n".join(filter(None, sys.path)))
    (closed / "to").symlink_to(real.parent)
    (closed / "links" / "python3").symlink_to(f"../to/{real.name}")
    (closed / "env" / "bin" / "python").symlink_to(closed / "links" / "python3")
    ran = subprocess.run(
        [closed / "env" / "bin" / "python", "-c", CHAINED, open_folder / "chained", closed],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert "other users may not pass through" in found["because"], "without a room"
    assert str(closed) in found["because"]
    assert found["said"], found["complaint"]
    seen = [set(names) for names in json.loads(found["said"])]
    assert seen == [{"env", "links", "to"}, {"python3"}]
