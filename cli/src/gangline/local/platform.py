"""The processes of the embedded platform, and how they find each other.

```
kafka, s3 (or the user's own) -> topics -> quota, scheduler, fault-manager, checkpoint-service,
alerts, registry, tracker, mlflow, console -> gateway -> node agents
```
Everything binds 127.0.0.1. With TLS the gateway has a certificate of an authority in the data
directory. State is kept in one data directory; ports stay the same over restarts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from gangline.local import console_files
from gangline.local.artifacts import Progress
from gangline.local.client import Client
from gangline.local.kafka_access import KAFKA_FILE, KafkaAccess, embedded, own
from gangline.local.nodes_file import nodes_file, write_nodes_file
from gangline.local.ports import keep_port, pick_ports
from gangline.local.probe import answers_ok
from gangline.local.process_model import ProcessSpec
from gangline.local.processes import Supervisor
from gangline.local.s3proxy import S3Proxy
from gangline_service.loopback import LOOPBACK
from gangline_service.private_file import write_private
from gangline_service.tokens import Role, TokenEntry, new_token, write_tokens

SERVICES: Mapping[str, str] = {
    "quota": "gangline_quota",
    "scheduler": "gangline_scheduler",
    "fault-manager": "gangline_faults",
    "checkpoint-service": "gangline_checkpoints",
    "alerts": "gangline_alerts",
    "studies": "gangline_studies",
    "pipelines": "gangline_pipelines",
    "registry": "gangline_registry",
    "tracker": "gangline_tracker",
    "gateway": "gangline_gateway",
}
PARTS: Mapping[str, str] = {
    **SERVICES,
    "live-view": "gangline_tracker.live",
    "mlflow": "gangline_mlflow",
    "console": "gangline_console",
}
"""The module of each process beside the agents."""
YIELDS = frozenset({"tracker", "live-view"})
"""They read all that passes and decide nothing; where CPUs are short, the others go first."""
NODES_TIMEOUT_S = 20.0
STANDBY_SESSION_MS = "3000"
"""A leader that is silent for this long is replaced by its standby, if there is one."""
_YIELDING = 5
"""A third of the CPU time of a process that it competes with."""
_TAKEN = frozenset({"ready", "draining", "cordoned", "outdated"})
"""A node that is admitted, whether it takes gangs or not."""


@dataclass(frozen=True)
class PlatformSettings:
    """The options of `gangline up`. The user's own parts replace the embedded ones."""

    data_dir: Path
    nodes: int = 2
    slots: int | None = 2
    """Of each node; None: it offers the machine's GPUs."""
    kafka: str | None = None
    kafka_settings: Path | None = None
    """For your own Kafka: librdkafka's settings, in a file for all parts or a folder of files."""
    secure: bool = False
    """The embedded Kafka asks for passwords and knows rights."""
    tls: bool = False
    """The gateway, and so the console, and agents have certificates of the platform's authority."""
    clickhouse: str | None = None
    store: str | None = None
    """A store URL, `local` for the embedded S3 server, None for a local directory."""
    teams_file: Path | None = None
    alerts_file: Path | None = None
    schedulers: int = 1
    live_view: bool = True
    heartbeat_timeout_s: float = 60.0
    heartbeat_interval_s: float = 1.0
    hang_min_s: float = 20.0
    """Shorter than on a cluster, since a user watches; a shared machine stalls for seconds."""
    ready_timeout_s: float = 90.0
    """Of Kafka, and then of all services."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Further GANGLINE_ settings of every process, for tests and tuning."""


class Platform:
    """The embedded platform over one data directory. Use it as a context manager."""

    def __init__(self, settings: PlatformSettings, progress: Progress | None = None) -> None:
        self.settings = settings
        self.data_dir = settings.data_dir.resolve()
        self.supervisor = Supervisor(self.data_dir)
        self._progress = progress
        self._kafka = KafkaAccess("")
        self._authority = ""

    def __enter__(self) -> Self:
        """Take the data directory; nothing runs yet."""
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.supervisor.claim()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything, dependents first."""
        self.supervisor.stop()

    def start(self, on_phase: Callable[[str], None] = lambda _: None) -> Client:
        """Start all parts and return once they are ready. Raises SupervisorError, ArtifactError."""
        ports = self._ports()
        certificate = self._certificate()
        kafka = self._start_kafka(on_phase)
        store = self._store(on_phase)
        environment = {**self._environment(kafka.bootstrap, ports), **store, **certificate}
        self.supervisor.wait_ready(self.settings.ready_timeout_s)
        on_phase("topics")
        kafka.set_up(environment.get("GANGLINE_TOPIC_PREFIX", ""))
        client = self._client(kafka, ports)
        on_phase("services")
        console_files.prepare(self._progress)
        self._kafka = kafka
        write_nodes_file(self.data_dir, environment, kafka.environment("agent"))
        self.supervisor.start([*self._services(environment), *self._agents(environment)])
        self.supervisor.wait_ready(self.settings.ready_timeout_s)
        on_phase("nodes")
        _wait_for_nodes(client, self.settings.nodes)
        return client

    def _certificate(self) -> dict[str, str]:
        """Certificates of the gateway and the agents, and the authority that signed them."""
        if not self.settings.tls:
            return {}
        from gangline.local.certificates import Authority

        authority = Authority(self.data_dir / "tls")
        own, agents = (str(authority.keep(name)) for name in ("gateway", "agents"))
        self._authority = str(authority.path)
        return {
            "GANGLINE_TLS_CERT": own,
            "GANGLINE_TLS_KEY": own,
            "GANGLINE_CONSOLE_GATEWAY_CA": self._authority,
            "GANGLINE_MLFLOW_CA_FILE": self._authority,
            "GANGLINE_PEER_TLS_CERT": agents,
            "GANGLINE_PEER_TLS_KEY": agents,
            "GANGLINE_PEER_CA_FILE": self._authority,
        }

    def _start_kafka(self, on_phase: Callable[[str], None]) -> KafkaAccess:
        """Start the embedded one, unless the user has another."""
        if self.settings.kafka is not None:
            return own(self.settings.kafka, self.settings.kafka_settings)
        on_phase("Apache Kafka")
        access, broker = embedded(self.data_dir / "kafka", secure=self.settings.secure)
        broker.prepare(self._progress)
        self.supervisor.start([broker.spec()])
        return access()

    def _services(self, environment: Mapping[str, str]) -> list[ProcessSpec]:
        found = [self._part(name, environment) for name in SERVICES if name != "scheduler"]
        copies = [f"scheduler-{index}" for index in range(self.settings.schedulers)]
        standby = {"GANGLINE_SESSION_TIMEOUT_MS": STANDBY_SESSION_MS} if len(copies) > 1 else {}
        found += [
            self._process(name, "scheduler", SERVICES["scheduler"], {**standby, **environment})
            for name in copies
        ]
        if self.settings.live_view:
            found.append(self._part("live-view", environment))
        found.append(self._part("mlflow", environment))
        found.append(self._part("console", environment))
        return found

    def _part(self, name: str, environment: Mapping[str, str]) -> ProcessSpec:
        return self._process(f"{name}-0", name, PARTS[name], environment)

    def _agents(self, environment: Mapping[str, str]) -> list[ProcessSpec]:
        found = []
        for index in range(self.settings.nodes):
            node = f"node-{index}"
            own = {
                "GANGLINE_NODE_ID": node,
                "GANGLINE_ADDRESS": LOOPBACK,
                "GANGLINE_SLOTS": "" if self.settings.slots is None else str(self.settings.slots),
                **self._offered_cpus(),
                "GANGLINE_RACK": f"rack-{index // 8}",
                "GANGLINE_DATA_DIR": str(self.data_dir / "nodes" / node),
                "GANGLINE_SECRETS_DIR": str(self.data_dir / "secrets"),
            }
            found.append(
                self._process(
                    node,
                    "agent",
                    "gangline_worker.agent",
                    {**environment, **own},
                    grace_s=20.0,
                )
            )
        return found

    def _offered_cpus(self) -> dict[str, str]:
        """A node offers a CPU for each slot, and the machine's for jobs without GPUs."""
        if self.settings.slots is None:
            return {}
        return {"GANGLINE_CPUS": str(self.settings.slots + len(os.sched_getaffinity(0)))}

    def _process(
        self,
        name: str,
        part: str,
        module: str,
        environment: Mapping[str, str],
        *,
        grace_s: float = 10.0,
    ) -> ProcessSpec:
        health_file = self.data_dir / "run" / "health" / f"{name}.json"
        health_file.parent.mkdir(parents=True, exist_ok=True)
        health_file.unlink(missing_ok=True)
        return ProcessSpec(
            name=name,
            argv=[sys.executable, "-m", module],
            env={
                **environment,
                **self._kafka.environment(part),
                "GANGLINE_INSTANCE_ID": name,
                "GANGLINE_HEALTH_FILE": str(health_file),
            },
            ready=lambda: _is_ready(health_file),
            depends_on=["kafka"] if self.settings.kafka is None else [],
            stop_grace_s=grace_s,
            niceness=_YIELDING if part in YIELDS else 0,
        )

    def _environment(self, bootstrap: str, ports: Mapping[str, int]) -> dict[str, str]:
        tokens = self._tokens()
        served = f"http://127.0.0.1:{ports['clickhouse']}"
        gateway = self._gateway_url(ports)
        embedded = f"chdb://{self.data_dir / 'clickhouse'}"
        found = {
            "GANGLINE_BOOTSTRAP_SERVERS": bootstrap,
            "GANGLINE_TOKENS_FILE": str(self.data_dir / "tokens.json"),
            "GANGLINE_SESSIONS_FILE": str(self.data_dir / "sessions.json"),
            "GANGLINE_SIGN_INS_FILE": str(self.data_dir / "sign-ins.json"),
            "GANGLINE_SERVICE_TOKEN": tokens["service"],
            "GANGLINE_CLICKHOUSE": self.settings.clickhouse or embedded,
            "GANGLINE_CLICKHOUSE_URL": self.settings.clickhouse or served,
            "GANGLINE_HTTP_PORT": str(ports["clickhouse"]),
            "GANGLINE_GATEWAY_PORT": str(ports["gateway"]),
            "GANGLINE_MLFLOW_PORT": str(ports["mlflow"]),
            "GANGLINE_MLFLOW_URL": f"http://127.0.0.1:{ports['mlflow']}",
            "GANGLINE_CONSOLE_PORT": str(ports["console"]),
            "GANGLINE_CONSOLE_URL": f"http://127.0.0.1:{ports['console']}",
            "GANGLINE_CONSOLE_GATEWAY_URL": gateway,
            "GANGLINE_MLFLOW_TRACKING_URI": f"{gateway}/mlflow",
            "GANGLINE_MLFLOW_DATABASE": f"sqlite:///{self.data_dir / 'mlflow.db'}",
            "GANGLINE_MLFLOW_LAZY": "true",
            "GANGLINE_HEARTBEAT_TIMEOUT_S": str(self.settings.heartbeat_timeout_s),
            "GANGLINE_HEARTBEAT_INTERVAL_S": str(self.settings.heartbeat_interval_s),
            "GANGLINE_HANG_MIN_S": str(self.settings.hang_min_s),
            "GANGLINE_NODE_CHECK": "light",
            "GANGLINE_NODES_FILE": str(nodes_file(self.data_dir)),
            "GANGLINE_ALERT_SECRETS_DIR": str(self.data_dir / "alert-secrets"),
            # Jobs here are the user's own, and may read all that is his.
            "GANGLINE_ISOLATION": os.environ.get("GANGLINE_ISOLATION", "process"),
            "OMP_NUM_THREADS": "1",
        }
        if self.settings.teams_file is not None:
            found["GANGLINE_TEAMS_FILE"] = str(self.settings.teams_file.resolve())
        if self.settings.alerts_file is not None:
            found["GANGLINE_ALERTS_FILE"] = str(self.settings.alerts_file.resolve())
        return found | dict(self.settings.environment)

    def _store(self, on_phase: Callable[[str], None]) -> dict[str, str]:
        """Where checkpoints and code bundles are kept, as settings of the processes."""
        wanted = self.settings.store
        if wanted == "local":
            on_phase("S3 server")
            server = S3Proxy(self.data_dir / "s3")
            server.prepare(self._progress)
            self.supervisor.start([server.spec()])
            return {"GANGLINE_STORE_URL": server.url, **server.environment}
        if wanted is not None:
            return {"GANGLINE_STORE_URL": wanted}
        folder = self.data_dir / "store"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Agents and store share the file system: shards are linked, not copied.
        return {"GANGLINE_STORE_URL": f"file://{folder}", "GANGLINE_LINK_UPLOADS": "true"}

    def _ports(self) -> dict[str, int]:
        """The ports of this data directory, kept over restarts unless another process has one."""
        path = self.data_dir / "ports.json"
        known: dict[str, int] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        kept = {name: port for name, port in known.items() if keep_port(port)}
        wanted = ("gateway", "clickhouse", "mlflow", "console")
        missing = [name for name in wanted if name not in kept]
        if missing:
            kept |= zip(missing, pick_ports(len(missing)), strict=True)
            path.write_text(json.dumps(kept), encoding="utf-8")
        return kept

    def _tokens(self) -> dict[str, str]:
        """The tokens of local use, made once: `admin` for the user, `service` for services."""
        path = self.data_dir / "local-tokens.json"
        if path.exists():
            kept: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        else:
            kept = {name: new_token() for name in ("admin", "service")}
            write_private(path, json.dumps(kept).encode())
        write_tokens(
            self.data_dir / "tokens.json",
            [
                TokenEntry.of(kept["admin"], name="local-admin", role=Role.ADMIN),
                TokenEntry.of(kept["service"], name="gangline-services", role=Role.SERVICE),
            ],
        )
        return kept

    def _gateway_url(self, ports: Mapping[str, int]) -> str:
        return f"{'https' if self.settings.tls else 'http'}://127.0.0.1:{ports['gateway']}"

    def _client(self, kafka: KafkaAccess, ports: Mapping[str, int]) -> Client:
        client = Client(
            url=self._gateway_url(ports),
            token=self._tokens()["admin"],
            bootstrap_servers=kafka.bootstrap,
            kafka_file=kafka.environment("administrator").get(KAFKA_FILE, ""),
            clickhouse_url=f"http://127.0.0.1:{ports['clickhouse']}",
            ca=self._authority,
        )
        client.write(self.data_dir)
        return client


def _wait_for_nodes(client: Client, wanted: int) -> None:
    """Until the gateway shows that the nodes are admitted, or for `NODES_TIMEOUT_S`.

    Then the first job's plan is right. A node that is late joins later: nothing depends on it.
    """
    from gangline.errors import CliError
    from gangline.sdk import Gangline
    from gangline.transport import Transport

    deadline = time.monotonic() + NODES_TIMEOUT_S
    with Gangline(Transport(client.url, client.token, ca=client.authority)) as gateway:
        while time.monotonic() < deadline:
            try:
                known = [node.status in _TAKEN for node in gateway.nodes()]
                if sum(known) >= wanted:
                    return
            except CliError:
                pass  # it is just starting
            time.sleep(0.1)


def _is_ready(health_file: Path) -> bool:
    if not health_file.exists():
        return False
    url = json.loads(health_file.read_text(encoding="utf-8"))["url"]
    return answers_ok(f"{url}/readyz")
