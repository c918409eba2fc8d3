"""FastTrackML, another tracking server that MLflow's clients can log to: to compare with.

`make bench-tracker` installs it beside the project's own packages: it is needed for nothing else.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from gangline.local.ports import pick_ports
from support.waiting import DEADLINE_S, wait_until

PROGRAM = Path(__file__).parents[3] / "build" / "fasttrackml" / "bin" / "fml"


@contextmanager
def fasttrackml_server(folder: Path) -> Iterator[tuple[str, int]]:
    """Its URL and process id, with SQLite in the folder; it ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    port = pick_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    argv = [
        str(PROGRAM), "server", "--listen-address", f"127.0.0.1:{port}", "--log-level", "error",
        "--database-uri", f"sqlite://{folder / 'fasttrackml.db'}",
        "--default-artifact-root", str(folder / "artifacts"),
    ]  # fmt: skip
    with (folder / "fasttrackml.log").open("ab") as log:
        process = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log)
    try:
        wait_until("FastTrackML", lambda: _answers(url) or process.poll() is not None)
        assert process.poll() is None, (folder / "fasttrackml.log").read_text()[-4000:]
        yield url, process.pid
    finally:
        process.terminate()
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(DEADLINE_S)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/2.0/mlflow/experiments/get?experiment_id=0").is_success
    except httpx.HTTPError:
        return False
