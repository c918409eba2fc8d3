"""Step 20 of a job of two ranks in a real store, the checkpoint service's executor, and damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
from gangline_checkpoints.service.executor import StoreExecutor
from gangline_schemas.checkpoint import commit_key
from gangline_storage import LocalStore, StoreError, StoreUnavailable
from support.builders.checkpoints import PREFIX, allocated, checkpoint_run, write_part
from support.harnesses.decider_run import START, DeciderRun

STEP = f"{PREFIX}/attempt-0001/step-0000000020"
COMMIT = commit_key(PREFIX, 1, 20)


class StoredStep:
    """Two ranks wrote step 20 of attempt 1 into a real store."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder / "store")
        self.pauses: list[float] = []
        self.execute = StoreExecutor(self.store, clock=lambda: START, pause=self.pauses.append)
        self.run: DeciderRun[CheckpointState, Reports] = checkpoint_run()
        self.run.feed(allocated())
        for rank in (0, 1):
            self.run.feed(write_part(self.store, rank))

    def path(self, name: str) -> Path:
        return self.store.root / STEP / name

    def verify(self) -> object:
        [(key, effect)] = self.run.effects().items()
        return self.execute(key, effect)

    def settle(self) -> None:
        """Run effects until nothing is asked for."""
        for _ in range(20):
            effects = self.run.effects()
            if not effects:
                return
            for key, effect in effects.items():
                self.run.done(key, self.execute(key, effect))
        raise AssertionError(f"still wanted: {sorted(self.run.effects())}")


@pytest.fixture
def stored(tmp_path: Path) -> StoredStep:
    return StoredStep(tmp_path)


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


class AwayStore(LocalStore):
    """A local store that does not answer the first `away` reads of rank 0's manifest."""

    away = 3
    error: StoreError = StoreUnavailable("no answer")

    def stream(self, key: str, chunk_bytes: int = 1 << 20):  # type: ignore[no-untyped-def]
        if self.away and key.endswith("rank-00000.json"):
            self.away -= 1
            raise self.error
        return super().stream(key, chunk_bytes)
