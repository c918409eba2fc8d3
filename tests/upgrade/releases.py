"""A release as users install it: the wheels of a checkout, in an environment of their own.

All that the wheels need comes from this environment, by its path; it is not installed again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = ROOT / ".uv" / "bin" / "uv"
MEMBERS = ("schemas", "libs/*", "services/*", "tools/*", "worker", "cli")
_FETCHED = Path("services/console/src/gangline_console/static/vendor")
"""Files of the console that no checkout has."""


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """The files of a revision, in a folder that goes afterwards."""
    with tempfile.TemporaryDirectory(prefix="gangline-release-") as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--quiet", "--detach", str(tree), revision)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*words: str) -> str:
    """What git says."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def install(tree: Path, folder: Path) -> Path:
    """Build the wheels of a checkout and install them below `folder`; the environment."""
    if not (tree / _FETCHED).exists():
        shutil.copytree(ROOT / _FETCHED, tree / _FETCHED)
    wheels, environment = folder / "wheels", folder / "environment"
    for places in MEMBERS:
        for member in sorted(path.parent for path in tree.glob(f"{places}/pyproject.toml")):
            run(UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--python",
                sys.executable, "--out-dir", wheels, member)  # fmt: skip
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    run(UV, "pip", "install", "--quiet", "--no-deps", "--offline", "--python",
        environment / "bin" / "python", *sorted(wheels.glob("*.whl")))  # fmt: skip
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


def run(*command: object) -> None:
    """Run a command; its output is shown if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
