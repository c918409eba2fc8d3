"""A registry and a node for the tests of images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_worker.agent.images import registry
from support.fakes.oci_registry import OciRegistry
from support.harnesses.image_node import ImageNode


@pytest.fixture
def hub() -> Iterator[OciRegistry]:
    with OciRegistry() as made:
        yield made


@pytest.fixture
def node(tmp_path: Path) -> ImageNode:
    return ImageNode(tmp_path / "node", tmp_path / "store")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FIRST_DELAY_S", 0.001)
