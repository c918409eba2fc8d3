"""The data of benchmarks fits the tables as they are now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1] / "bench"
FILL = """
import sys
from bench_dashboards import fill_runs
from gangline_tracker.engine import Engine
from gangline_tracker.migrate import migrate
client = Engine(f"chdb://{sys.argv[1]}").client()
migrate(client)
fill_runs(client, 2000)
print(client.query("SELECT count() FROM gangline.usage").result_rows[0][0])
"""


def test_runs_with_all_that_belongs_to_them_can_be_filled_in(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path / "db")],
        cwd=BENCH, env={**os.environ, "PYTHONPATH": str(BENCH.parent)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == 500
