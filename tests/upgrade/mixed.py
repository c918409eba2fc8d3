"""A platform whose processes are each of one of two releases, and change while it runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gangline.local.platform import Platform, PlatformSettings
from gangline.local.process_model import ProcessSpec
from support.waiting import wait_until
from upgrade.releases import has

READY_S = 300.0
"""Nothing asserts a time: a machine that others use may need so long."""
BEFORE, THIS = "before", "this"


class MixedPlatform(Platform):
    """Each process runs the Python of a link, `at/NAME`, which leads to a release's environment.

    `releases`: the environments BEFORE and THIS. All begin as BEFORE, except the parts that it
    does not have. A switch is an upgrade as users do it: services are stopped and start again,
    agents take over in place.
    """

    def __init__(self, settings: PlatformSettings, releases: Mapping[str, Path]) -> None:
        super().__init__(settings)
        self._releases = releases
        self._links = settings.data_dir.resolve() / "at"
        self.added: set[str] = set()
        """Processes that only this release has."""
        self._switched: dict[str, int] = {}

    def _process(
        self, name: str, part: str, module: str, environment: Mapping[str, str], *,
        grace_s: float = 10.0,
    ) -> ProcessSpec:  # fmt: skip
        made = super()._process(name, part, module, environment, grace_s=grace_s)
        if not has(self._releases[BEFORE], module):
            self.added.add(name)
        self._link(name, THIS if name in self.added else BEFORE)
        return replace(made, argv=[str(self._links / name / "bin" / "python"), *made.argv[1:]])

    def switch(self, name: str, release: str) -> None:
        """Run this process with that release, and return once it is ready."""
        self._link(name, release)
        log = self.data_dir / "logs" / f"{name}.log"
        starts = log.read_text(errors="replace").count("service.started")
        (row,) = [row for row in self.supervisor.status() if row.name == name]
        assert row.pid is not None, f"{name} does not run"
        agent = name.startswith("node-")
        os.kill(row.pid, signal.SIGHUP if agent else signal.SIGTERM)
        if not agent:
            self._switched[name] = self._switched.get(name, 0) + 1
        wait_until(
            f"{name} of {release}",
            lambda: log.read_text(errors="replace").count("service.started") > starts,
            READY_S,
        )
        self.supervisor.wait_ready(READY_S, [name])

    def crashes(self) -> dict[str, int]:
        """Restarts that no switch explains, by process."""
        rows = self.supervisor.status()
        found = {row.name: row.restarts - self._switched.get(row.name, 0) for row in rows}
        return {name: count for name, count in found.items() if count}

    def _link(self, name: str, release: str) -> None:
        self._links.mkdir(parents=True, exist_ok=True)
        fresh = self._links / f".{name}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(self._releases[release])
        fresh.replace(self._links / name)
