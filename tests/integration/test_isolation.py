"""Hostile ranks on a real node: twelve ways out, and none is one. Beside each stands what may be.

All run under one agent that took the strongest level this machine has, or the one that
GANGLINE_TEST_ISOLATION names; what needs more is skipped.
The control is the same act on the rank's own things, so an attack that could not work at all
would fail its test too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from gangline_schemas.checkpoint import CommitRecord, code_key, commit_key, job_prefix
from gangline_schemas.events.scheduling import CheckpointRef, GangAllocated, ReleaseReason
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.events.workers import (
    CheckpointShardWritten,
    ExitReason,
    WorkerExited,
    WorkerStacks,
)
from gangline_schemas.isolation import Isolation
from gangline_storage.local import LocalStore
from support.fixtures.isolation import (
    HOSTILE,
    METADATA,
    OURS,
    PROCESSES,
    SECRET,
    SLOTS,
    THEIRS,
    Stand,
    Victim,
    folder,
    stand,
    victim,
)
from support.harnesses.node import NodeHarness, alive, until

__all__ = ["folder", "stand", "victim"]


def test_1_no_file_of_another_team_or_of_the_agent_is_read(stand: Stand, victim: Victim) -> None:
    node = stand.scene.folder / "node"
    agents = [str(node), str(node / "agent.lock"), str(node / "spool"), str(stand.scene.store)]
    found = stand.told(
        f"""
        def read(path):
            return os.listdir(path) if os.path.isdir(path) else open(path).read()
        named = ("HOME", "GANGLINE_DATA_CACHE")
        own = [os.path.join(os.environ[name], "own.txt") for name in named]
        for path in own:
            open(path, "w").write("mine")
        paths = victim["files"] + {agents!r}
        tell(own=[read(path) for path in own], theirs=[attempt(read, path) for path in paths])
        """,
        victim,
    )
    assert found["own"] == ["mine", "mine"]
    theirs = found["theirs"]
    assert isinstance(theirs, list)
    assert SECRET not in str(theirs)
    # The agent's folder may be seen, with nothing in it but the way to what is the rank's own.
    seen = [text for text in theirs if not text.endswith("Error")]
    known = {"work", "checkpoints", "data-cache"}
    assert all(set(json.loads(text.replace("'", '"'))) <= known for text in seen)


def test_2_no_signal_reaches_another_team_or_the_agent(stand: Stand, victim: Victim) -> None:
    assert stand.scene.agent is not None
    others = [victim.pid, stand.scene.agent.pid]
    found = stand.told(
        f"""
        import signal, subprocess
        own = subprocess.Popen(["sleep", "60"])
        os.kill(own.pid, signal.SIGTERM)
        seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        mine = {{os.getpid(), own.pid}}
        tell(
            own=own.wait(),
            one=[attempt(os.kill, pid, signal.SIGTERM) for pid in {others!r}],
            group=[attempt(os.killpg, pid, signal.SIGTERM) for pid in {others!r}],
            # Of the rest it is only asked whether it may: nobody is hurt should this test fail.
            asked=[attempt(os.kill, pid, 0) for pid in seen if pid not in mine],
        )
        """,
        victim,
    )
    assert found["own"] == -15
    refused = {"ProcessLookupError", "PermissionError"}
    assert isinstance(found["one"], list)
    assert isinstance(found["group"], list)
    assert isinstance(found["asked"], list)
    assert {*found["one"], *found["group"], *found["asked"]} <= refused


def test_3_nobody_else_is_traced_nor_is_his_memory_read(stand: Stand, victim: Victim) -> None:
    found = stand.told(
        """
        import ctypes, subprocess
        libc = ctypes.CDLL(None)
        own = subprocess.Popen(["sleep", "60"])
        def attach(pid):
            return libc.ptrace(16, pid, None, None)
        def memory(pid):
            return open(f"/proc/{pid}/mem", "rb").readable()
        tell(
            own=[attach(own.pid), memory(own.pid)],
            theirs=[attach(victim["pid"]), attempt(memory, victim["pid"])],
        )
        own.kill()
        """,
        victim,
    )
    assert found["own"] == [0, True]
    assert isinstance(found["theirs"], list)
    assert found["theirs"][0] == -1
    assert found["theirs"][1] in {"FileNotFoundError", "PermissionError"}


def test_4_a_fork_bomb_fills_its_own_room_alone(stand: Stand, victim: Victim) -> None:
    bomb = stand.begin(
        f"""
        import signal
        def fork():
            pid = os.fork()
            if pid == 0:
                signal.pause()
            return pid
        children = []
        try:
            while len(children) < {PROCESSES + 50}:
                children.append(fork())
        except BlockingIOError:
            pass
        tell(children=len(children))
        signal.pause()
        """
    )
    stand.scene.wait(lambda: bool(stand.lines(bomb.job_id)))
    children = json.loads(stand.lines(bomb.job_id)[0])["children"]
    assert 50 < children < PROCESSES
    # While it stands there, another team forks as it likes, and the agent starts ranks.
    found = stand.told(
        """
        def child():
            return os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1]
        tell(own=[child() for _ in range(20)])
        """,
        victim,
        team=THEIRS,
        slot=2,
    )
    assert found["own"] == [0] * 20
    whole = psutil.Process(stand.pid(bomb.job_id)).children(recursive=True)
    assert len(whole) == children
    stand.scene.release(bomb, ReleaseReason.CANCELLED)
    assert stand.exit(bomb.job_id).reason is ExitReason.FENCED
    until(lambda: not any(alive(process.pid) for process in whole), "a piece of it lives on")


def test_5_a_memory_bomb_ends_at_its_share(stand: Stand) -> None:
    stand.needs(Isolation.USER)
    share = int(stand.node.memory_gb / SLOTS * 2**30)
    found = stand.told(
        f"""
        import mmap
        def take(size):  # as malloc would; untouched, so that nobody else suffers if it is given
            return len(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        own = attempt(take, {share // 2})
        tell(own=own, above=attempt(take, {share + 2**26}), after=attempt(take, {2**20}))
        """
    )
    assert found == {"own": str(share // 2), "above": "OSError", "after": str(2**20)}


def test_5_a_bomb_of_shared_memory_ends_with_its_rank_and_nobody_elses(
    stand: Stand, victim: Victim
) -> None:
    stand.needs(Isolation.LIMITS)
    share = int(stand.node.memory_gb / SLOTS * 2**30)
    other = stand.begin("import time; time.sleep(600)", slot=2)
    innocent = stand.pid(other.job_id)
    bomb = stand.begin(
        f"""
        def fill(size):
            file = os.memfd_create("bomb")
            for _ in range(size // 2**24):
                os.write(file, bytes(2**24))
            return size
        tell(own=fill({share // 4}))
        fill({share})
        tell(own="all of it")
        """
    )
    exited = stand.exit(bomb.job_id)
    assert [json.loads(line) for line in stand.lines(bomb.job_id)] == [{"own": share // 4}]
    assert (exited.reason, exited.signal) == (ExitReason.FAILED, signal.SIGKILL)
    assert exited.out_of_memory
    stand.scene.release(bomb, ReleaseReason.FAILED)
    assert alive(innocent)
    os.kill(innocent, signal.SIGKILL)
    assert not stand.exit(other.job_id).out_of_memory, "it was not killed for another's memory"
    stand.scene.release(other, ReleaseReason.FAILED)


DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for descriptor in (0, 1, 2):  # holds on to nothing, and names nobody
            os.dup2(os.open("/dev/null", os.O_RDWR), descriptor)
        os.execve("/bin/sleep", ["sleep", os.environ["SECONDS"]], {})
    os._exit(0)
os.wait()
"""


def daemon_of(stand: Stand, script: str) -> tuple[GangAllocated, int]:
    """A gang that runs this, and the pid of the daemon that it begins."""
    seconds = str(98_000_000 + os.getpid() * 10 + next(stand.numbers))

    def found() -> list[int]:
        running = psutil.process_iter(["cmdline"])
        return [item.pid for item in running if item.info["cmdline"] == ["sleep", seconds]]

    gang = stand.begin(script, env={"SECONDS": seconds})
    until(lambda: bool(found()), "it never began")
    (daemon,) = found()
    return gang, daemon


def test_6_no_daemon_is_left_behind(stand: Stand) -> None:
    stand.needs(Isolation.NAMESPACES)
    gang, daemon = daemon_of(stand, DAEMON)
    assert stand.exit(gang.job_id).reason is ExitReason.FINISHED
    stand.scene.release(gang, ReleaseReason.SUCCEEDED)
    until(lambda: not alive(daemon), "the daemon outlived its gang")


def test_7_no_variable_of_the_agent_or_of_another_team_is_seen(
    stand: Stand, victim: Victim
) -> None:
    found = stand.told(
        """
        seen = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                seen.append(open(f"/proc/{name}/environ").read())
            except OSError:
                pass
        tell(own=os.environ["USER"], seen="".join(seen), here=dict(os.environ))
        """,
        victim,
    )
    assert found["own"] == OURS
    assert "GANGLINE_RANK_TOKEN" in str(found["seen"]), "its own environment is there"
    for hidden in (SECRET, "of the agent alone", "GANGLINE_STORE_URL", "GANGLINE_DATA_DIR"):
        assert hidden not in str(found)


def test_8_the_metadata_service_is_out_of_reach(stand: Stand) -> None:
    stand.needs(Isolation.USER)
    if "metadata_service_is_open" in (stand.scene.folder / "agent.log").read_text():
        pytest.skip("this machine's kernel has no routing rules for users")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((METADATA[0], 80))  # of a datagram: nothing is sent
        except OSError:
            pytest.skip("nobody on this machine has a way there")
    found = stand.told(
        f"""
        import socket
        def reach(address, kind):
            with socket.socket(socket.AF_INET, kind) as link:
                link.settimeout(5)
                return link.connect((address, 80))
        tell(
            own=attempt(reach, "192.0.2.1", socket.SOCK_DGRAM),
            theirs=[attempt(reach, address, kind) for address in {METADATA!r}
                    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)],
        )
        """
    )
    assert found == {"own": "None", "theirs": ["PermissionError"] * 2 * len(METADATA)}


STAYS = """
import socket
import subprocess
import sys
def stays(port):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        link.settimeout(1)
        try:
            return link.recv(1) != b""
        except TimeoutError:
            return True
"""


def listening(agent: psutil.Process) -> set[tuple[str, int]]:
    """Where an agent, and all that it started, take connections."""
    found: set[tuple[str, int]] = set()
    for process in (agent, *agent.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add((connection.laddr.ip, connection.laddr.port))
    return found


def test_9_a_foreign_rank_does_not_get_to_a_rendezvous(stand: Stand, victim: Victim) -> None:
    theirs = stand.told(
        STAYS + "tell(own=attempt(stays, int(os.environ['MASTER_PORT'])),"
        " theirs=attempt(stays, victim['port']))",
        victim,
    )
    assert theirs["own"] == "True"
    assert theirs["theirs"] in {"False", "ConnectionResetError"}
    teammate = stand.told(STAYS + "tell(own=attempt(stays, victim['port']))", victim, team=THEIRS)
    assert teammate["own"] == "True", "their own team does get there"
    assert stand.scene.agent is not None
    open_at = listening(psutil.Process(stand.scene.agent.pid))
    assert ("127.0.0.1", victim.known["port"]) in open_at
    assert {address for address, _ in open_at} == {"127.0.0.1"}, "where it is reached, nowhere else"


def test_10_no_checkpoint_of_another_job_is_touched(stand: Stand, victim: Victim) -> None:
    script = """
        kept = os.environ["GANGLINE_CHECKPOINT_DIR"]
        def write(folder):
            with open(os.path.join(folder, "mark"), "w") as file:
                return file.write("x")
        theirs = os.path.dirname(victim["files"][1])
        tell(
            own=[attempt(write, kept), attempt(os.listdir, kept)],
            theirs=[attempt(write, theirs), attempt(os.listdir, theirs),
                    attempt(os.rename, theirs, theirs + "-gone")],
        )
    """
    found = stand.told(script, victim)
    assert found["own"] == ["1", "['mark']"]
    refused = {"FileNotFoundError", "PermissionError"}
    assert isinstance(found["theirs"], list)
    assert set(found["theirs"]) <= refused
    if stand.node.isolation.strength >= Isolation.NAMESPACES.strength:
        again = stand.told(script, victim, team=THEIRS)["theirs"]  # a job of the same team
        assert isinstance(again, list)
        assert set(again) <= refused


def test_11_the_socket_of_another_gang_cannot_be_opened(stand: Stand, victim: Victim) -> None:
    found = stand.told(
        """
        import socket
        def reach(path):
            with socket.socket(socket.AF_UNIX) as link:
                return link.connect(path)
        folder = os.path.dirname(victim["socket"])
        tell(
            own=attempt(reach, os.environ["GANGLINE_AGENT_SOCKET"]),
            theirs=[attempt(reach, victim["socket"])],
            others=attempt(os.listdir, folder),
        )
        """,
        victim,
    )
    assert found["own"] == "None"
    assert isinstance(found["theirs"], list)
    assert set(found["theirs"]) <= {"FileNotFoundError", "PermissionError"}
    assert str(victim.gang.job_id) not in str(found["others"])


def test_12_the_token_of_an_older_attempt_opens_nothing(stand: Stand) -> None:
    script = """
        import socket, time
        def report(token, step):
            link = socket.socket(socket.AF_UNIX)
            link.settimeout(5)
            link.connect(os.environ["GANGLINE_AGENT_SOCKET"])
            rank = int(os.environ["RANK"])
            hello = {"kind": "hello", "rank": rank, "token": token}
            said = {"kind": "report", "step": [step], "time_ms": [1], "metrics": {"x": [1.0]}}
            try:
                for frame in (hello, said):
                    link.sendall(json.dumps(frame).encode() + b"\\n")
                link.shutdown(socket.SHUT_WR)
                return link.recv(1)
            except OSError as error:
                return type(error).__name__
        token = os.environ["GANGLINE_RANK_TOKEN"]
        if os.environ["GANGLINE_ATTEMPT"] == "1":
            with open(os.path.join(os.environ["GANGLINE_CHECKPOINT_DIR"], "token"), "w") as file:
                file.write(token)
            report(token, 1)
        else:
            stale = open(os.path.join(os.environ["GANGLINE_CHECKPOINT_DIR"], "token")).read()
            assert stale != token
            report(stale, 666)
            report(token, 2)
    """
    command = ["python", "-c", HOSTILE + dedent(script)]
    for attempt in (1, 2):
        gang = stand.scene.allocate(
            stand.node, job_id="twice", attempt=attempt, gpus=[3], command=command
        )
        stand.scene.wait(
            lambda at=attempt: any(
                item.job_id == "twice" and item.attempt == at
                for item in stand.scene.of(WorkerExited)
            )
        )
        stand.scene.release(gang, ReleaseReason.RESTARTING)
    steps = [item for item in stand.scene.of(WorkerStep) if item.run_id == "twice"]
    assert sorted(step for item in steps for step in item.step) == [1, 2]


def test_nothing_of_a_room_outlives_a_killed_agent(folder: Path, kafka_bootstrap: str) -> None:
    place = folder / "second"
    place.mkdir()
    with NodeHarness(place, kafka_bootstrap, GANGLINE_ISOLATION="auto") as scene:
        stand = Stand(scene, scene.start_agent())
        stand.needs(Isolation.NAMESPACES)
        gang, daemon = daemon_of(stand, DAEMON + "import time; time.sleep(600)")
        rank = stand.pid(gang.job_id)
        assert alive(daemon)
        assert alive(rank)
        scene.kill_agent()
        until(lambda: not (alive(daemon) or alive(rank)), "something outlived the agent")


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
    packed = stand.scene.folder / "packed.tar.gz"
    source = stand.scene.folder / "train.py"
    source.write_text(text)
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(source, arcname="train.py")
    digest = sha256(packed.read_bytes()).hexdigest()
    LocalStore(stand.scene.store).put(code_key(OURS, digest), packed.read_bytes())
    return digest


def test_an_isolated_gang_starts_warm_meets_saves_and_goes_on(stand: Stand) -> None:
    stand.needs(Isolation.USER)
    scene, digest = stand.scene, bundle(stand, TRAINS)
    resume = None
    for attempt in (1, 2):
        gang = scene.allocate(
            stand.node,
            job_id="trains",
            attempt=attempt,
            gpus=[4, 5],
            resume=resume,
            code_bundle=digest,
            command=["python", "train.py"],
        )

        def exits(at: int = attempt) -> list[WorkerExited]:
            found = [item for item in scene.of(WorkerExited) if item.job_id == "trains"]
            return [item for item in found if item.attempt == at]

        scene.wait(lambda: len(exits()) == 2)
        assert {item.reason for item in exits()} == {ExitReason.FINISHED}, exits()
        scene.release(gang, ReleaseReason.RESTARTING)
        parts = sorted(
            (part for part in scene.of(CheckpointShardWritten) if part.attempt == attempt),
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
        LocalStore(scene.store).put(key, record.encode(), if_absent=True)
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
    gang = stand.begin("""
        import time
        def never_returns():
            print("hangs", flush=True)
            time.sleep(600)
        never_returns()
    """)
    stand.scene.wait(lambda: stand.lines(gang.job_id) == ["hangs"])
    stand.scene.fail_as_hung(gang)
    stand.scene.wait(lambda: bool(stand.scene.of(WorkerStacks)))
    (stacks,) = stand.scene.of(WorkerStacks)
    assert "never_returns" in stacks.stacks, stacks


CHAINED = """
import json, sys
from pathlib import Path
from gangline_schemas.isolation import Isolation
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
isolator.enter(gang, [], 1 << 30, lambda begin: begin())
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
    stand: Stand, folder: Path
) -> None:
    stand.needs(Isolation.NAMESPACES)
    closed, real = folder / "closed", Path(sys.executable).resolve()
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
    told = subprocess.run(
        [closed / "env" / "bin" / "python", "-c", CHAINED, folder / "chained", closed],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout.splitlines()[-1])
    assert "other users may not pass through" in found["because"], "without a room"
    assert str(closed) in found["because"]
    assert found["said"], found["complaint"]
    seen = [set(names) for names in json.loads(found["said"])]
    assert seen == [{"env", "links", "to"}, {"python3"}]
