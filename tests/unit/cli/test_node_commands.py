"""`gangline node`: the files of a node that joined, its unit, and its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gangline.errors import CliError
from gangline.node import checks
from gangline.node.agent import UNIT, end_agent, write_unit
from gangline.node.checks import check_node
from gangline.node.folder import NodeFolder
from gangline_schemas.api.joining import JoinedNode
from gangline_worker.agent.config import AgentSettings
from support.fakes.stub_gateway import NODE, TOKEN, Reply, Stub
from support.harnesses.cli_run import Runner

JOINED = JoinedNode(
    node_id="n1",
    settings={"bootstrap_servers": "kafka:9093", "store_url": "s3://gangline", "peer_copies": True},
    kafka={"sasl.username": "agent", "sasl.password": 'a "quoted" one'},
    kafka_ca="PEM",
    files={"mlflow_ca_file": "OTHER"},
    environment={"AWS_SECRET_ACCESS_KEY": 'x/y+"z\\$HOME w'},
    release="0.1.0",
)
AGENT = """
import fcntl, json, os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
(folder / "data").mkdir(parents=True)
lock = os.open(folder / "data" / "agent.lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
(folder / "health.json").write_text(json.dumps({"pid": os.getpid()}))
print("locked", flush=True)
signal.sigwait([signal.SIGTERM])
"""


def test_checks_that_hang_are_an_error_with_its_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(checks.subprocess, "run", hang)
    with pytest.raises(CliError, match="did not end in 120 s"):
        check_node(tmp_path)


def test_the_agent_reads_what_the_gateway_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = NodeFolder(tmp_path / "node")
    folder.write(JOINED, {"rack": "r7", "address": "10.0.0.4"})
    found = folder.environment()
    assert found["AWS_SECRET_ACCESS_KEY"] == JOINED.environment["AWS_SECRET_ACCESS_KEY"]
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    settings = AgentSettings()
    assert (settings.node_id, settings.rack, settings.address) == ("n1", "r7", "10.0.0.4")
    assert (settings.store_url, settings.data_dir) == ("s3://gangline", folder.data)
    assert settings.kafka["sasl.password"] == JOINED.kafka["sasl.password"]
    assert Path(settings.kafka["ssl.ca.location"]).read_text() == "PEM"
    assert (folder.path / "mlflow_ca_file.pem").read_text() == "OTHER"
    assert settings.mlflow_ca_file == folder.path / "mlflow_ca_file.pem"
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert folder.path.stat().st_mode & 0o777 == 0o711  # users of teams pass to `data`
    folder.forget()
    assert not folder.joined
    assert [path.name for path in folder.path.iterdir()] == []


def test_the_unit_names_this_python_and_folder(tmp_path: Path) -> None:
    unit = write_unit(NodeFolder(tmp_path / "node"), tmp_path)
    lines = unit.read_text().splitlines()
    assert f"ExecStart={sys.executable} -m gangline_worker.agent" in lines
    assert f"EnvironmentFile={tmp_path}/node/environment" in lines
    assert "RestartPreventExitStatus=2 77" in lines


@pytest.mark.parametrize("name", ["two words", "100%n", 'quo"te', "line\nExecStartPre=x"])
def test_a_unit_is_not_written_for_a_path_that_systemd_reads_otherwise(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(CliError, match="systemd would read"):
        write_unit(NodeFolder(tmp_path / name), tmp_path)
    assert not (tmp_path / UNIT).exists()


def test_a_unit_that_cannot_be_written_costs_no_token(
    gangline: Runner, stub: Stub, tmp_path: Path
) -> None:
    stub.on("POST", "/v1/nodes/join", JOINED.model_dump())
    join = (
        "node", "join", "--server", stub.url, "--token", TOKEN, "--dir", str(tmp_path / "node"),
        "--slots", "2", "--skip-checks", "--systemd", "--unit-dir", str(tmp_path / "units"),
    )  # fmt: skip
    ran = gangline(*join)
    assert (ran.code, "run it as root" in ran.err) == (1, True)
    assert not NodeFolder(tmp_path / "node").joined
    (tmp_path / "units").mkdir()
    assert gangline(*join).code == 0


def test_a_join_that_is_refused_leaves_no_unit(
    gangline: Runner, stub: Stub, tmp_path: Path
) -> None:
    problem = {"type": "t", "title": "t", "status": 401, "detail": "the token is used up"}
    stub.on("POST", "/v1/nodes/join", Reply(problem, 401))
    ran = gangline(
        "node", "join", "--server", stub.url, "--token", TOKEN, "--dir", str(tmp_path / "node"),
        "--slots", "2", "--skip-checks", "--systemd", "--unit-dir", str(tmp_path),
    )  # fmt: skip
    assert ran.code != 0
    assert not (tmp_path / UNIT).exists()


def test_an_agent_is_ended_and_its_end_is_waited_for(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path / "node")
    assert folder.pid() is None
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(folder.path)], stdout=subprocess.PIPE
    )
    assert agent.stdout is not None
    with agent.stdout as said:
        assert said.readline() == b"locked\n"
    assert folder.pid() == agent.pid
    (tmp_path / UNIT).touch()
    end_agent(folder, tmp_path)
    assert agent.wait(10) == -15 or agent.returncode == 0
    assert (folder.pid(), (tmp_path / UNIT).exists()) == (None, False)


def test_a_machine_joins_with_a_unit(gangline: Runner, stub: Stub, tmp_path: Path) -> None:
    stub.on("POST", "/v1/nodes/join", JOINED.model_dump())
    folder = tmp_path / "node"
    join = (
        "node", "join", "--server", stub.url, "--token", TOKEN, "--dir", str(folder),
        "--slots", "2", "--skip-checks", "--systemd", "--unit-dir", str(tmp_path),
    )  # fmt: skip
    ran = gangline(*join)
    assert ran.code == 0, ran.err
    assert "systemctl enable --now gangline-agent.service" in ran.out
    assert NodeFolder(folder).joined
    assert "slots = 2" in (folder / "node.toml").read_text()
    again = gangline(*join)
    assert (again.code, "has joined already" in again.err) == (1, True)
    left = gangline("node", "leave", "--dir", str(folder), "--unit-dir", str(tmp_path))
    assert (left.code, NodeFolder(folder).joined) == (0, False)


def test_a_token_is_shown_with_the_command(gangline: Runner, stub: Stub) -> None:
    stub.on(
        "POST",
        "/v1/node-tokens",
        Reply({"token": "gl_node_x", "nodes": 2, "expires_at": "2026-11-26T12:00:00Z"}, 201),
    )
    ran = gangline("node", "token", "--nodes", "2", "--expires", "0.5")
    assert f"gangline node join --server {stub.url} --token gl_node_x" in ran.out


def test_tokens_are_listed_and_revoked(gangline: Runner, stub: Stub) -> None:
    row = {
        "token_id": "n-5d1c0e77a9b2", "nodes": 2, "used": 1, "made_by": "eve",
        "expires_at": "2026-11-26T12:00:00Z",
    }  # fmt: skip
    stub.on("GET", "/v1/node-tokens", {"tokens": [row]})
    stub.on("DELETE", "/v1/node-tokens/n-5d1c0e77a9b2", Reply(None, 204))
    assert "n-5d1c0e77a9b2  1 of 2  eve  2026-11-26 12:00" in gangline("node", "tokens").out
    assert "n-5d1c0e77a9b2 is revoked" in gangline("node", "revoke", "n-5d1c0e77a9b2").out


def test_a_machine_that_has_not_joined_says_so(gangline: Runner, tmp_path: Path) -> None:
    for command in ("start", "leave"):
        ran = gangline("node", command, "--dir", str(tmp_path))
        assert (ran.code, "has not joined" in ran.err) == (1, True)


def test_a_variable_of_two_lines_is_refused(tmp_path: Path) -> None:
    two = JOINED.model_copy(update={"environment": {"A": "1\nB=2"}})
    with pytest.raises(CliError, match="several lines"):
        NodeFolder(tmp_path).write(two, {})


def test_the_checks_are_shown_as_json(gangline: Runner, tmp_path: Path) -> None:
    ran = gangline("doctor", "--node", "--dir", str(tmp_path), "--slots", "1", "--json")
    assert {"Python", "disk", "ports"} <= {check["name"] for check in ran.json}
    failed = any(check["state"] == "failed" for check in ran.json)
    assert ran.code == int(failed)


def test_nodes_say_whether_they_run_images(gangline: Runner, stub: Stub) -> None:
    assert "IMAGES" not in gangline("nodes").out
    stub.on("GET", "/v1/nodes", {"nodes": [NODE | {"runs_images": True}]})
    header, row = gangline("nodes").out.splitlines()[:2]
    assert row[header.index("IMAGES") :].startswith("yes")
