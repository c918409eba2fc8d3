"""The platforms that are broken here.

- `on_one_machine`: as `gangline up` makes it, of three nodes with two slots each. The store is a
  folder beside the nodes' own.
- `apart`: three such nodes, each with its own way to the bus and to the store, which is an S3
  server, its own disk, and its own cloud that may take it away.
- `joined`: two nodes with one slot each, on machines with networks of their own and a cable between
  them, so that a gang's ranks meet over it.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from chaos.links import BusLink, Link
from gangline.local.platform import Platform, PlatformSettings
from gangline.local.process_model import ProcessSpec
from gangline.local.s3proxy import BUCKET, S3Proxy
from support.fakes.metadata_server import MetadataServer
from support.fixtures.platform import TEAMS, RunningPlatform, start_platform
from support.harnesses.two_machines import Machine, two_machines

NODES = 3
DISK_MB = 1280  # a node with less than 1 GB free is not taken
HANG_MIN_S = 5.0
FILL_TRIES = 10
BEATS_PER_TIMEOUT = 48


@dataclass(frozen=True)
class Disk:
    """A node's disk. Without `own` it is a folder of this machine's and cannot be filled."""

    folder: Path
    own: bool

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"

    def fill(self, leave_bytes: int) -> None:
        """Leave so much free."""
        with self._filler.open("ab") as file:
            for _ in range(FILL_TRIES):  # others write there too
                size, more = os.fstat(file.fileno()).st_size, self._free() - leave_bytes
                if more <= 0:
                    return
                with _full_is_fine():
                    os.posix_fallocate(file.fileno(), size, more)

    def clear(self) -> None:
        """There is room again."""
        self._filler.unlink(missing_ok=True)

    def _free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize


@dataclass(frozen=True)
class Node:
    """What a node has of its own."""

    bus: Link
    store: Link
    disk: Disk
    cloud: MetadataServer

    def cut(self) -> None:
        """Its network is gone."""
        self.bus.cut()
        self.store.cut()

    def mend(self) -> None:
        """Its network is back."""
        self.bus.mend()
        self.store.mend()

    def take_away(self, in_s: float) -> None:
        """The cloud gives notice."""
        at = datetime.now(UTC) + timedelta(seconds=in_s)
        self.cloud.spot_action = {
            "action": "terminate",
            "time": at.isoformat(timespec="seconds").replace("+00:00", "Z"),
        }


@dataclass(frozen=True)
class Joined:
    """A machine with a cable to the other one, and its own way to the bus."""

    machine: Machine
    bus: Link

    def cut(self) -> None:
        """Its network is gone."""
        self.machine.cut()
        self.bus.cut()

    def mend(self) -> None:
        """Its network is back."""
        self.machine.mend()
        self.bus.mend()


@dataclass(frozen=True)
class BreakablePlatform(RunningPlatform):
    """A platform that is up. `nodes` and `services`, the services' way to the store: if apart.

    `joined`: its machines, by node.
    """

    store_dir: Path
    nodes: Mapping[str, Node] = field(default_factory=dict)
    services: Link | None = None
    joined: Mapping[str, Joined] = field(default_factory=dict)

    @property
    def disks(self) -> bool:
        """Whether each node has a disk of its own."""
        return bool(self.nodes) and all(node.disk.own for node in self.nodes.values())

    def store_links(self) -> list[Link]:
        """All ways to the store."""
        own = [node.store for node in self.nodes.values()]
        return own if self.services is None else [*own, self.services]


class _Apart(Platform):
    """Gives each agent its own addresses."""

    def __init__(self, settings: PlatformSettings, server: S3Proxy, ends: ExitStack) -> None:
        super().__init__(settings)
        self._server, self._ends = server, ends
        self.nodes: dict[str, Node] = {}

    def _agents(self, environment: Mapping[str, str]) -> list[ProcessSpec]:
        found = super()._agents(environment)
        broker_port = int(environment["GANGLINE_BOOTSTRAP_SERVERS"].rpartition(":")[2])
        return [
            replace(spec, env={**spec.env, **self._own(spec.name, broker_port)}) for spec in found
        ]

    def _own(self, name: str, broker_port: int) -> dict[str, str]:
        bus, store = BusLink(broker_port), Link(self._server.settings.port)
        self._ends.callback(bus.close)
        self._ends.callback(store.close)
        cloud = self._ends.enter_context(MetadataServer())
        disk = self._ends.enter_context(_disk(self.data_dir / "nodes" / name))
        self.nodes[name] = Node(bus, store, disk, cloud)
        return {
            "GANGLINE_BOOTSTRAP_SERVERS": f"127.0.0.1:{bus.port}",
            "GANGLINE_STORE_URL": _store_url(store),
            "GANGLINE_NOTICE_PROVIDER": "aws",
            "GANGLINE_NOTICE_URL": cloud.url,
            "GANGLINE_NOTICE_INTERVAL_S": "0.5",
        }


class _Joined(Platform):
    """Runs each agent on a machine of its own."""

    def __init__(self, settings: PlatformSettings, ends: ExitStack) -> None:
        super().__init__(settings)
        self._ends = ends
        self.joined: dict[str, Joined] = {}

    def _agents(self, environment: Mapping[str, str]) -> list[ProcessSpec]:
        agents = super()._agents(environment)
        bootstrap = environment["GANGLINE_BOOTSTRAP_SERVERS"]
        ways = [Link(int(bootstrap.rpartition(":")[2])) for _ in agents]
        for way in ways:
            self._ends.callback(way.close)
        machines = self._ends.enter_context(two_machines(bootstrap, [way.port for way in ways]))
        found = []
        for spec, machine, way in zip(agents, machines, ways, strict=True):
            self.joined[spec.name] = Joined(machine, way)
            argv = [*machine.entering, *spec.argv]
            env = {**spec.env, "GANGLINE_ADDRESS": machine.address}
            begun = Path(env["GANGLINE_HEALTH_FILE"]).exists  # to ask is only possible there
            found.append(replace(spec, argv=argv, env=env, ready=begun))
        return found


@contextmanager
def on_one_machine(folder: Path) -> Iterator[BreakablePlatform]:
    """Quick to notice a hang; what is silent has its time, as the machine may be busy."""
    platform, _ = start_platform(
        folder,
        nodes=NODES,
        heartbeat_interval_s=0.5,
        hang_min_s=HANG_MIN_S,
        live_view=False,
    )
    with platform:
        yield BreakablePlatform(platform, platform.start(), folder, folder / "store")


@contextmanager
def apart(folder: Path, heartbeat_timeout_s: float = 12.0) -> Iterator[BreakablePlatform]:
    """A node that is cut off counts as failed after this time; its lease is 0.75 of it."""
    with ExitStack() as ends:
        server = ends.enter_context(S3Proxy(folder / "s3"))
        services = Link(server.settings.port)
        ends.callback(services.close)
        settings = PlatformSettings(
            data_dir=folder / "data",
            nodes=NODES,
            teams_file=_teams(folder),
            store=_store_url(services),
            heartbeat_timeout_s=heartbeat_timeout_s,
            heartbeat_interval_s=heartbeat_timeout_s / BEATS_PER_TIMEOUT,
            hang_min_s=HANG_MIN_S,
            live_view=False,
            environment=server.environment,
        )
        platform = _Apart(settings, server, ends)
        objects = server.data_dir / "objects" / BUCKET
        with platform:
            client = platform.start()
            yield BreakablePlatform(
                platform, client, settings.data_dir, objects, platform.nodes, services
            )


@contextmanager
def joined(folder: Path) -> Iterator[BreakablePlatform]:
    """Its times are those of `apart`. Raises NoMachinesError where none can be made."""
    with ExitStack() as ends:
        data = folder / "data"
        data.mkdir(parents=True)
        settings = PlatformSettings(
            data_dir=data,
            nodes=2,
            slots=1,
            teams_file=_teams(folder),
            heartbeat_timeout_s=12.0,
            heartbeat_interval_s=12.0 / BEATS_PER_TIMEOUT,
            hang_min_s=HANG_MIN_S,
            live_view=False,
        )
        platform = _Joined(settings, ends)
        with platform:
            client = platform.start()
            yield BreakablePlatform(platform, client, data, data / "store", joined=platform.joined)


def _teams(folder: Path) -> Path:
    path = folder / "teams.yaml"
    path.write_text(TEAMS, encoding="utf-8")
    return path


def _store_url(way: Link) -> str:
    """The S3 server's bucket, by this way."""
    return f"s3://{BUCKET}?endpoint=http://127.0.0.1:{way.port}"


@contextmanager
def _full_is_fine() -> Iterator[None]:
    """The disk was full sooner than it looked."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


@contextmanager
def _disk(folder: Path) -> Iterator[Disk]:
    """A small file system in memory, where this user may mount one."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = _mounted(folder)
    try:
        yield Disk(folder, own)
    finally:
        if own:
            subprocess.run(["umount", "--lazy", folder], capture_output=True, check=False)


def _mounted(folder: Path) -> bool:
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=700", "gangline-chaos", folder]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
