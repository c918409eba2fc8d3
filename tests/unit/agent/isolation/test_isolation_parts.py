"""Parts of isolation by themselves: users of teams, levels, files of others, peers of a socket."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from gangline_schemas.isolation import Isolation
from gangline_worker.agent.config import AgentSettings
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.host.connections import uid_of
from gangline_worker.agent.isolation.cold_start import Launch, start_cold
from gangline_worker.agent.isolation.files import Owner, acting_as, give, opened_as
from gangline_worker.agent.isolation.groups import GangLimits, Groups
from gangline_worker.agent.isolation.isolator import Bounds, IsolationMissing, Isolator
from gangline_worker.agent.isolation.owners import Owners
from gangline_worker.agent.isolation.sandbox import Confinement

UIDS = range(1_900_000_000, 1_900_000_010)
STRANGER = Owner(1_900_000_003)
GANG = GangKey("job", 1)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="the agent is not root here")


@pytest.fixture
def isolator(tmp_path: Path) -> Isolator:
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    return Isolator(tmp_path, sockets, [tmp_path / "secrets"], Bounds(UIDS, 500))


def test_a_team_has_one_user_the_same_after_a_restart_and_nobody_elses(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    owners = Owners(file, UIDS)
    teams = [f"team-{number}" for number in range(len(UIDS))]
    given = {team: owners.of(team) for team in teams}
    assert len(set(given.values())) == len(teams)
    again = Owners(file, UIDS)
    assert {team: again.of(team) for team in reversed(teams)} == given
    assert Owners(tmp_path / "another", UIDS).of(teams[0]) == given[teams[0]], "by its name"
    with pytest.raises(OSError, match="all 10 users"):
        again.of("one-too-many")


def test_the_levels_are_in_order() -> None:
    strengths = [level.strength for level in Isolation]
    assert strengths == sorted(strengths)
    assert Isolation.NONE.strength == 0


@pytest.mark.parametrize("level", [Isolation.USER, Isolation.NAMESPACES])
def test_an_agent_that_is_not_root_says_what_it_cannot_give(
    isolator: Isolator, monkeypatch: pytest.MonkeyPatch, level: Isolation
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(IsolationMissing, match=rf"cannot give {level}: the agent is not root"):
        isolator.settle(level)
    isolator.settle(None)
    assert isolator.level is Isolation.PROCESS


def test_each_level_gives_what_it_says(isolator: Isolator) -> None:
    orders = {}
    for level in Isolation:
        isolator.level = level
        owner = isolator.owner("nlp")
        orders[level] = isolator.confinement(GANG, owner, 1 << 30).orders
    assert orders[Isolation.NONE] == ()
    assert orders[Isolation.PROCESS] == ("limit CORE 0", "lock")
    uid = isolator.owner("nlp")
    assert uid is not None
    limits = ("limit NPROC 500", "limit DATA 1073741824", f"user {uid.uid}")
    assert orders[Isolation.USER] == ("limit CORE 0", *limits, "lock")
    assert orders[Isolation.NAMESPACES] == orders[Isolation.USER]


def test_settings_name_what_is_wrong_with_the_users() -> None:
    with pytest.raises(SystemExit):
        AgentSettings.load(isolation_uids="0-1000", store_url="file:///s")
    settings = AgentSettings.load(isolation_uids="2000-2009", store_url="file:///s")
    assert settings.uids == range(2000, 2010)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A control group as its files are."""
    folder = tmp_path / "group"
    folder.mkdir()
    (folder / "cgroup.controllers").write_text("cpu memory pids\n")
    return folder


def test_a_gang_has_a_control_group_with_its_limits(base: Path) -> None:
    groups = Groups(base)
    assert (base / "gangline-agent" / "cgroup.procs").read_text() == "0"
    assert (base / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    file = groups.make(GANG, GangLimits(1 << 30), 500)
    folder = base / "gang-job-1"
    assert file == folder / "cgroup.procs"
    assert (folder / "memory.max").read_text() == str(1 << 30)
    assert (folder / "pids.max").read_text() == "500"
    assert not (folder / "cpu.max").exists(), "a gang with GPUs may use what is there"
    groups.remove(folder)
    assert (folder / "cgroup.kill").read_text() == "1"
    for made in folder.iterdir():  # which the system does
        made.unlink()
    groups.remove(base / "gang-other-1")
    assert not folder.exists(), "what was busy goes later"


@pytest.mark.parametrize(("offered", "limit"), [("cpu memory pids", "250000 100000"), ("", None)])
def test_a_gang_without_gpus_has_the_cpus_that_it_asked_for(
    base: Path, offered: str, limit: str | None
) -> None:
    (base / "cgroup.controllers").write_text(offered or "memory pids")
    Groups(base).make(GANG, GangLimits(1 << 30, cpus=2.5), 500)
    file = base / "gang-job-1" / "cpu.max"
    assert (file.read_text() if file.exists() else None) == limit


def test_a_process_gives_up_what_it_is_told_to(tmp_path: Path) -> None:
    group = tmp_path / "with a space"
    group.touch()
    program = """
        import resource
        print(resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_NOFILE))
        print(*(line for line in open("/proc/self/status") if line.startswith("NoNewPrivs")))
    """
    orders = (f"group {group}", "limit CORE 0", "limit NOFILE 77", "lock")
    command = (sys.executable, "-c", dedent(program))
    launch = Launch(RankKey(GANG, 0), command, {}, tmp_path, Confinement(orders))
    with start_cold(launch) as process:
        said, complaint = process.communicate(timeout=30)
    assert said.decode().split("\n")[:2] == ["(0, 0) (77, 77)", "NoNewPrivs:\t1"], complaint
    assert group.read_text() == "0"


def test_a_group_without_the_controllers_is_left_as_it_is(base: Path) -> None:
    (base / "cgroup.controllers").write_text("hugetlb\n")
    with pytest.raises(OSError, match="no controllers of memory and pids"):
        Groups(base)
    assert [path.name for path in base.iterdir()] == ["cgroup.controllers"]


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Path]:
    """A folder of a stranger's that he can get to."""
    folders = [tmp_path, *tmp_path.parents[:-1]]
    modes = {folder: folder.stat().st_mode for folder in folders}
    for folder in folders:
        if not modes[folder] & 0o001:
            folder.chmod(modes[folder] | 0o001)
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    (folder / "file").write_text("his own")
    give(folder, STRANGER)
    yield folder
    for folder, mode in modes.items():
        folder.chmod(mode)


@as_root
def test_what_a_rank_puts_in_the_place_of_its_file_is_not_followed(
    theirs: Path, tmp_path: Path
) -> None:
    agents = tmp_path / "agents"
    agents.write_text("of the agent")
    agents.chmod(0o600)
    with opened_as(STRANGER, theirs / "file") as file:
        (theirs / "file").unlink()
        (theirs / "file").symlink_to(agents)
        assert file.read_text() == "his own", "it was opened before"
    with pytest.raises(OSError, match="symbolic links"), opened_as(STRANGER, theirs / "file"):
        pass
    (theirs / "folder").symlink_to(tmp_path)
    with pytest.raises(PermissionError), opened_as(STRANGER, theirs / "folder" / "agents"):
        pass
    os.mkfifo(theirs / "pipe", 0o666)
    with pytest.raises(OSError, match="no plain file"), opened_as(STRANGER, theirs / "pipe"):
        pass


@as_root
def test_acting_as_somebody_ends_and_holds_for_this_thread_alone(
    theirs: Path, tmp_path: Path
) -> None:
    agents = tmp_path / "agents"
    agents.write_text("of the agent")
    agents.chmod(0o600)
    with acting_as(STRANGER):
        with pytest.raises(PermissionError):
            agents.read_text()
        (theirs / "made").write_text("his")
    assert (theirs / "made").stat().st_uid == STRANGER.uid
    assert agents.read_text() == "of the agent"
    with acting_as(None):
        assert agents.read_text() == "of the agent"


@as_root
def test_what_is_given_is_given_without_following_links(tmp_path: Path) -> None:
    tree, other = tmp_path / "tree", tmp_path / "other"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").touch()
    other.touch()
    (tree / "link").symlink_to(other)
    give(tree, STRANGER)
    for path in (tree, tree / "deep", tree / "deep" / "file", tree / "link"):
        assert path.lstat().st_uid == STRANGER.uid
    assert other.stat().st_uid == 0


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_connection_of_this_machine_is_known_by_its_user(family: socket.AddressFamily) -> None:
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.socket(family) as listening:
        try:
            listening.bind((address, 0))
        except OSError:
            pytest.skip("no such addresses here")
        listening.listen()
        client = socket.create_connection(listening.getsockname()[:2])
        accepted, peer = listening.accept()
        own = accepted.getsockname()[:2]
        assert uid_of(peer[:2], own) == os.getuid()
        client.close()
        assert uid_of(peer[:2], own) is None, "it is nobody's now"
        accepted.close()


@as_root
@pytest.mark.parametrize("level", [Isolation.USER, Isolation.NAMESPACES])
def test_a_level_names_the_closed_folder_above_the_agents(tmp_path: Path, level: Isolation) -> None:
    closed = tmp_path / "closed"
    data = closed / "node"
    (data / "sockets").mkdir(parents=True)
    closed.chmod(0o700)
    isolator = Isolator(data, data / "sockets", [], Bounds(UIDS, 500))
    with pytest.raises(IsolationMissing, match=rf"other users may not pass through .*{closed}"):
        isolator.settle(level)
