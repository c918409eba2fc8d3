"""A release as users install it: the wheels of a checkout, in an environment of their own.

All that the wheels need comes from this environment, by its path; it is not installed again. The
environment of a commit is made once and stays in `build/releases`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = ROOT / ".uv" / "bin" / "uv"
MEMBERS = ("schemas", "libs/*", "services/*", "tools/*", "worker", "cli")
KEPT = ROOT / "build" / "releases"
_FETCHED = Path("services/console/src/gangline_console/static/vendor")
"""Files of the console that no checkout has."""


def of_revision(revision: str) -> Path:
    """The environment of a commit, made unless it is there."""
    folder = KEPT / git("rev-parse", f"{revision}^{{commit}}")
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        with checkout(revision) as tree:
            install(tree, folder)
        (folder / "complete").touch()
    return folder / "environment"


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
    if not (tree / _FETCHED).exists() and (tree / _FETCHED).parent.exists():
        shutil.copytree(ROOT / _FETCHED, tree / _FETCHED)
    wheels, environment = folder / "wheels", folder / "environment"
    members = [
        path.parent for places in MEMBERS for path in sorted(tree.glob(f"{places}/pyproject.toml"))
    ]

    def build(member: Path) -> None:
        run(UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--python",
            sys.executable, "--out-dir", wheels, member)  # fmt: skip

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, members))
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    run(UV, "pip", "install", "--quiet", "--no-deps", "--offline", "--python",
        environment / "bin" / "python", *sorted(wheels.glob("*.whl")))  # fmt: skip
    (packages(environment) / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


def packages(environment: Path) -> Path:
    """The folder of its modules."""
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def has(environment: Path, module: str) -> bool:
    """Whether the release has this module of Gangline."""
    place = packages(environment).joinpath(*module.split("."))
    return place.is_dir() or place.with_suffix(".py").exists()


def run(*command: object) -> None:
    """Run a command; its output is shown if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
