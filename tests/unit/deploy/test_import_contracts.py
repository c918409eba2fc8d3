"""The import contracts of pyproject.toml cover a new module, and all members."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
PURE, SHARED, TORCH = "Pure modules", "Members share their cores", "torch is imported"
MODULES = {
    "gangline_sample/core/state.py": "",
    "gangline_sample/service/config.py": "import time\n",
    "gangline_sample/__main__.py": "from gangline_sample.service import config\n",
    "gangline_other/reader.py": "from gangline_sample.core import state\n",
    "gangline_worker/train.py": "import torch\n",
}


def contract(name: str) -> dict[str, Any]:
    return next(c for c in SETTINGS["importlinter"]["contracts"] if c["name"].startswith(name))


def patterns(names: list[str]) -> list[str]:
    return [name for name in names if "*" in name]


def lines(key: str, values: list[str]) -> str:
    return f"{key} =\n" + "".join(f"    {value}\n" for value in values)


def refused(folder: Path, added: dict[str, str]) -> list[str]:
    """The contracts that the worker and two sample members break with these modules added."""
    for name, text in (MODULES | added).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in path.relative_to(folder).parents[:-1]:
            (folder / package / "__init__.py").touch()
        path.write_text(text)
    pure, shared, torch = contract(PURE), contract(SHARED), contract(TORCH)
    members = ["gangline_sample", "gangline_other", "gangline_worker"]
    (folder / ".importlinter").write_text(
        "[importlinter]\ninclude_external_packages = True\n"
        + lines("root_packages", members)
        + f"[importlinter:contract:pure]\nname = {PURE}\ntype = {pure['type']}\n"
        + "allow_indirect_imports = True\n"
        + lines("source_modules", patterns(pure["source_modules"]))
        + lines("forbidden_modules", ["time", *patterns(pure["forbidden_modules"])])
        + f"[importlinter:contract:shared]\nname = {SHARED}\ntype = {shared['type']}\n"
        + "unmatched_ignore_imports_alerting = none\n"
        + lines("modules", members)
        + lines("ignore_imports", [name for name in shared["ignore_imports"] if name[0] == "*"])
        + f"[importlinter:contract:torch]\nname = {TORCH}\ntype = {torch['type']}\n"
        + lines("protected_modules", torch["protected_modules"])
        + lines("allowed_importers", torch["allowed_importers"])
    )
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    run = subprocess.run(
        [sys.executable, "-c", command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    broken = [name for name in (PURE, SHARED, TORCH) if f"{name} BROKEN" in run.stdout]
    assert (run.returncode != 0) == bool(broken), run.stdout + run.stderr
    return broken


@pytest.mark.parametrize(
    ("added", "broken"),
    [
        ({}, []),
        ({"gangline_sample/core/new.py": "import time\n"}, [PURE]),
        ({"gangline_sample/core/policy/new.py": "import time\n"}, [PURE]),
        ({"gangline_sample/core/new.py": "from gangline_sample.service import config\n"}, [PURE]),
        ({"gangline_other/new.py": "from gangline_sample.service import config\n"}, [SHARED]),
        ({"gangline_other/new.py": "import gangline_sample.__main__\n"}, [SHARED]),
        ({"gangline_other/new.py": "from torch.nn import Linear\n"}, [TORCH]),
    ],
    ids=[
        "allowed",
        "core",
        "policy",
        "own service",
        "another's service",
        "another's shell",
        "torch",
    ],
)
def test_new_modules_are_covered(tmp_path: Path, added: dict[str, str], broken: list[str]) -> None:
    assert refused(tmp_path, added) == broken


def test_each_member_has_contracts() -> None:
    """The three lists in which the tools take no pattern."""
    sources = {
        path.parent.parent
        for pattern in SETTINGS["uv"]["workspace"]["members"]
        for path in ROOT.glob(f"{pattern}/src/*/__init__.py")
    }
    members = {path.parent.name for source in sources for path in source.glob("*/__init__.py")}
    libraries = {"gangline_schemas", "gangline_bus", "gangline_service", "gangline_storage"}
    assert set(SETTINGS["importlinter"]["root_packages"]) == members
    assert set(contract(SHARED)["modules"]) == members - libraries
    assert {ROOT / path for path in SETTINGS["mypy"]["mypy_path"]} == sources


def test_a_member_depends_on_each_member_that_it_imports() -> None:
    """Installed by itself, it has all that it needs."""
    folders = {
        path.parent: tomllib.loads(path.read_text())["project"]
        for pattern in SETTINGS["uv"]["workspace"]["members"]
        for path in ROOT.glob(f"{pattern}/pyproject.toml")
    }
    missing = {
        (project["name"], needed)
        for folder, project in folders.items()
        for source in (folder / "src").rglob("*.py")
        for needed in imported_members(source)
        if needed not in {project["name"], *project["dependencies"]}
    }
    packages = len(SETTINGS["importlinter"]["root_packages"])
    assert len(folders) == packages - 1  # the tracker's has two
    assert missing == set()


def imported_members(source: Path) -> set[str]:
    """The names of the distributions whose packages it imports."""
    packages = re.findall(r"^\s*(?:from|import) (gangline\w*)", source.read_text(), re.MULTILINE)
    found = {package.replace("_", "-") for package in packages}
    return {"gangline-tracker" if name == "gangline-mlflow" else name for name in found}
