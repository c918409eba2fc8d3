"""ClickHouse's clients of other languages, where their runtime and packages are at hand.

Their packages are pinned, and come by npm and the Go module proxy into the cache. A test that needs
one is skipped where they cannot be fetched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gangline.local.artifacts import default_cache

SOURCES = Path(__file__).parents[1] / "clients"
NODE_CLIENT = "@clickhouse/client@1.23.1"


def node_answers(url: str, token: str, queries: Sequence[str]) -> list[dict[str, Any]]:
    """What @clickhouse/client gets for each query: types, rows, error."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("no Node here")
    folder = default_cache() / "clickhouse-clients" / "node"
    if not (folder / "node_modules" / "@clickhouse" / "client").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _fetch([npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), NODE_CLIENT])
    # Node looks for packages beside the file.
    script = folder / "clickhouse.mjs"
    shutil.copy(SOURCES / "clickhouse.mjs", script)
    return _answers([node, str(script), url, token], queries)


def go_answers(url: str, token: str, queries: Sequence[str]) -> list[dict[str, Any]]:
    """What clickhouse-go gets for each query, over HTTP: types, rows, error."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go here")
    program = default_cache() / "clickhouse-clients" / "clickhouse-go"
    program.parent.mkdir(parents=True, exist_ok=True)
    _fetch([go, "build", "-buildvcs=false", "-o", str(program), "."], SOURCES / "go")
    return _answers([str(program), url.removeprefix("http://"), token], queries)


def _fetch(command: list[str], folder: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=280, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{Path(command[0]).name} took too long")
    if done.returncode:
        pytest.skip(f"{Path(command[0]).name} could not fetch the client: {done.stderr[-300:]}")


def _answers(command: list[str], queries: Sequence[str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        command,
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
