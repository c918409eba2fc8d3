"""docs/guides/install.md: its files and commands, from an empty folder to two nodes and a job.

Paths and addresses are this machine's, and this test does what systemd would: it starts the units'
commands with their variables. Kafka asks for passwords, MLflow uses PostgreSQL, the store is S3.
There is no ClickHouse server here, so the history is in the embedded engine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gangline.local.kafka_folders import admin_file
from gangline.local.kafka_secure import SecureKafka
from gangline.local.platform import PARTS
from gangline.local.ports import pick_ports
from gangline.local.s3proxy import S3Proxy
from support.builders.certificates import certificate
from support.harnesses.postgres import EmbeddedPostgres
from support.waiting import wait_until

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "install.md").read_text(encoding="utf-8")
SYSTEMS_OWN = ("systemctl", "systemd-sysusers", "chown", "cp", "id")
"""Commands for systemd and its users, which do nothing here. Section 2 needs a package index."""
NOTHING = "".join(f"{name}() {{ :; }}\n" for name in SYSTEMS_OWN)
STOP_S = 60.0


def files() -> dict[str, str]:
    """The guide's files by path."""
    found = re.findall(r"^```toml\n# (/etc/\S+)\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    return dict(found)


def commands(title: str) -> str:
    """The commands of a section."""
    section = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    assert section is not None, title
    return "".join(re.findall(r"^```sh\n(.*?)^```", section[1], re.MULTILINE | re.DOTALL))


@dataclass
class Site:
    """A site as the guide describes it, in a folder of this machine."""

    folder: Path
    replaced: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def etc(self) -> Path:
        return self.folder / "etc"

    def here(self, text: str) -> str:
        """The text with this machine's paths and addresses."""
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return text

    def run(self, script: str, **variables: str) -> str:
        """Commands of the guide; fails if one fails."""
        done = subprocess.run(
            ["bash", "-euc", NOTHING + self.here(script)],
            cwd=self.folder, env=self.environment | variables, timeout=180, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "GANGLINE" not in name}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return kept | {"PATH": path, "GANGLINE_CA_FILE": str(self.etc / "tls.crt")}

    def service(self, name: str) -> None:
        """Start a service as its unit does."""
        unit = self.here((ROOT / "deploy" / "systemd" / "gangline@.service").read_text())
        unit = unit.replace("%i", name).replace("%H", "here")
        variables = dict(
            line.split("=", 1) for line in re.findall(r"^Environment=(.*)", unit, re.MULTILINE)
        )
        for file in re.findall(r"^EnvironmentFile=-(.*)", unit, re.MULTILINE):
            text = Path(file).read_text() if Path(file).exists() else ""
            variables |= {name: value.strip('"') for name, value in re.findall(r"(\w+)=(.*)", text)}
        command = re.search(r"^ExecStart=(.*)", unit, re.MULTILINE)
        assert command is not None
        state = self.folder / "var" / name
        state.mkdir(parents=True)
        self.start(name, command[1].split(), variables, state)

    def start(self, name: str, command: list[str], variables: dict[str, str], place: Path) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command, env=self.environment | variables, cwd=place, stdout=log, stderr=log
            )

    def ended(self) -> str:
        """The ends of the logs of processes that have ended; "" if all run."""
        ended = [name for name, process in self.processes.items() if process.poll() is not None]
        logs = {name: (self.folder / f"{name}.log").read_text(errors="replace") for name in ended}
        return "\n".join(f"{name}: {text[-1500:]}" for name, text in logs.items())

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            process.wait(STOP_S)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    etc = tmp_path / "etc"
    (tmp_path / "var").mkdir()
    etc.mkdir()
    tls = certificate(etc, "tls")
    gateway, mlflow, console, history = pick_ports(4)
    with ExitStack() as stack:
        kafka = stack.enter_context(SecureKafka(tmp_path / "kafka"))
        s3 = stack.enter_context(S3Proxy(tmp_path / "s3"))
        postgres = stack.enter_context(EmbeddedPostgres(tmp_path / "postgres"))
        (etc / "admin.toml").write_text(admin_file(tmp_path / "kafka").read_text())
        (etc / "tls.crt").write_text(tls[0].read_text())
        (etc / "tls.key").write_text(tls[1].read_text())
        keys = s3.environment
        found = Site(
            tmp_path,
            {
                "/etc/gangline": str(etc),
                "/opt/gangline/bin/gangline": str(Path(sys.executable).parent / "gangline"),
                "kafka-0.example:9093,kafka-1.example:9093": kafka.bootstrap,
                "s3://gangline?endpoint=https://s3.example": s3.url,
                "postgresql://gangline@postgres.example/mlflow": postgres.database("mlflow"),
                'clickhouse = "https://clickhouse.example:8443"': (
                    f'clickhouse = "chdb://{tmp_path}/history"\nhttp_port = {history}\n'
                    f'tokens_file = "{etc}/tokens.json"'
                ),
                "https://clickhouse.example:8443": f"http://127.0.0.1:{history}",
                'AWS_ACCESS_KEY_ID = "gangline"': (
                    f'AWS_ACCESS_KEY_ID = "{keys["AWS_ACCESS_KEY_ID"]}"'
                ),
                '"..."': f'"{keys["AWS_SECRET_ACCESS_KEY"]}"',
                "gangline.example:8443": f"127.0.0.1:{gateway}",
                '"gangline.example"': '"127.0.0.1"',
                '"0.0.0.0"': '"127.0.0.1"',
                "gateway_port = 8443": f"gateway_port = {gateway}",
                "mlflow_port = 8090": f"mlflow_port = {mlflow}",
                "127.0.0.1:8090": f"127.0.0.1:{mlflow}",
                "console_port = 8091": f"console_port = {console}",
                "127.0.0.1:8091": f"127.0.0.1:{console}",
            },
        )
        try:
            yield found
        finally:
            found.stop()


def test_from_nothing_to_two_nodes(site: Site) -> None:
    for name, text in files().items():
        place = Path(site.here(name))
        place.write_text(site.here(text))
        place.chmod(0o600)
    assert "created" in site.run(commands("3. Kafka"))
    site.run(commands("5. Secrets"))
    site.run(commands("6. Services").partition("export GANGLINE_URL")[0])
    for name in PARTS:
        site.service(name)
    ask = "export GANGLINE_URL" + commands("6. Services").partition("export GANGLINE_URL")[2]
    wait_until("the gateway", lambda: succeeds(site, ask) or site.ended())
    if ended := site.ended():
        pytest.fail(ended)
    site.run(ask)

    admin = site.here(
        "export GANGLINE_URL=https://gangline.example:8443\n"
        "export GANGLINE_TOKEN=$(cat /etc/gangline/admin-token)\n"
    )
    made, check, join, listing = re.findall(
        r"^gangline .*", commands("7. Nodes"), re.MULTILINE
    )  # fmt: skip
    token = site.run(admin + made).split()[0]
    own = f"--ca {site.etc}/tls.crt"
    assert "agrees" in site.run(f"{check} {own} --dir {site.folder}/n0 --slots 1")
    for node in ("n0", "n1"):
        folder = site.folder / node
        words = f"{own} --dir {folder} --unit-dir {site.folder} --node-id {node} --slots 1"
        said = site.run(f"{join.replace('TOKEN', token)} {words}", GANGLINE_ISOLATION="process")
        assert "gangline-agent.service" in said
        environment = {"GANGLINE_NODE_CHECK": "light", "GANGLINE_ISOLATION": "process"}
        command = [str(Path(sys.executable).parent / "gangline"), "node", "start", "--dir"]
        site.start(node, [*command, str(folder)], environment, site.folder)
    third = f"{join.replace('TOKEN', token)} {own} --dir {site.folder}/n2 --node-id n2"
    with pytest.raises(AssertionError, match="used up"):
        site.run(third)
    wait_until("both nodes", lambda: site.run(admin + listing).count(" ready ") == 2)
    site.run(admin + commands("8. A first job"))
    for node in ("n0", "n1"):
        left = f"{commands('Remove a node').strip()} --dir {site.folder}/{node}"
        assert "left" in site.run(f"{left} --unit-dir {site.folder}")
        assert not (site.folder / node / "kafka.toml").exists()
    wait_until("their goodbye", lambda: " ready " not in site.run(admin + listing))
    denied = (site.folder / "kafka" / "logs" / "kafka.log").read_text()
    assert " is Denied " not in denied


def succeeds(site: Site, script: str) -> bool:
    try:
        site.run(script)
    except AssertionError:
        return False
    return True
