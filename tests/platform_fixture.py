"""The whole embedded platform as a fixture: real Kafka, ClickHouse engine, services and agents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gangline.local.client import Client
from gangline.local.platform import Platform, PlatformSettings

TEAMS = """
teams:
  - {team: default, gpu_limit: 64, gpu_guarantee: 4}
  - {team: research, gpu_limit: 4, gpu_guarantee: 2}
  - {team: small, gpu_limit: 1, gpu_guarantee: 1}
"""


@dataclass(frozen=True)
class RunningPlatform:
    """A platform that is up; `platform.supervisor` knows its processes."""

    platform: Platform
    client: Client
    data_dir: Path

    def pid(self, name: str) -> int:
        """The process id of one of its processes."""
        (row,) = [row for row in self.platform.supervisor.status() if row.name == name]
        assert row.pid is not None, f"{name} is not running"
        return row.pid


def start_platform(data_dir: Path, **settings: object) -> tuple[Platform, PlatformSettings]:
    """A platform of 2 nodes x 2 slots over `data_dir`, not started yet."""
    teams = data_dir / "teams.yaml"
    data_dir.mkdir(parents=True, exist_ok=True)
    teams.write_text(TEAMS, encoding="utf-8")
    wanted = PlatformSettings(data_dir=data_dir, teams_file=teams, **settings)  # type: ignore[arg-type]
    return Platform(wanted), wanted


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    """One platform for all tests of the session that leave it as they found it."""
    data_dir = tmp_path_factory.mktemp("platform")
    running, _ = start_platform(
        data_dir,
        heartbeat_timeout_s=10.0,
        heartbeat_interval_s=0.5,
        environment={"GANGLINE_STRAGGLER_AFTER_S": "3", "GANGLINE_DATA_APPROVALS": "named"},
    )
    with running:
        client = running.start()
        yield RunningPlatform(running, client, data_dir)
