"""Write the dashboards: `python deploy/grafana/generate.py [FOLDER]`.

Each module of `boards` makes one. Without FOLDER they go to `dashboards` beside this file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from boards import checkpoints, cluster, control_plane, job, teams, tracking

BOARDS = (cluster, job, checkpoints, control_plane, teams, tracking)
FOLDER = Path(__file__).parent / "dashboards"


def files() -> Mapping[str, str]:
    """The text of each file, by its name."""
    encode = JSONEncoder(indent=1, sort_keys=True, ensure_ascii=False).encode
    made = [(board.__name__.rpartition(".")[2], board.dashboard()) for board in BOARDS]
    return {f"{name.replace('_', '-')}.json": encode(found) + "\n" for name, found in made}


def main() -> None:
    """Write the files; others in the folder are removed."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    made = files()
    for old in folder.glob("*.json"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
