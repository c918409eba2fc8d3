"""What a text calls by its name is there: modules in any text, files in pages and docstrings."""

from __future__ import annotations

import re
from pathlib import Path

import prose

ROOT = prose.ROOT
SUFFIXES = {"", ".py", ".md", ".toml", ".yaml", ".yml", ".json", ".sh"}
LEFT_OUT = {"build", "site", "node_modules"}
FILES = sorted(
    path
    for top in ROOT.iterdir()
    if top.name[0] != "." and top.name not in LEFT_OUT
    for path in ([top] if top.is_file() else top.rglob("*"))
    if path.suffix in SUFFIXES and path.is_file() and path != Path(__file__)
)
PACKAGES = {
    path.name: path
    for pattern in ("*/src/gangline*", "*/*/src/gangline*")
    for path in ROOT.glob(pattern)
    if path.suffix != ".egg-info"
}
_MODULE = re.compile(r"(?<![\w./-])gangline\w*(?:\.[A-Za-z_]\w*)+")
_FILE = re.compile(r"(?<![\w./*-])((?:[\w.-]+/)*[a-z0-9_]+\.py)\b")
_CODE_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def is_module(name: str) -> bool:
    """Whether a dotted name is a module, or one and a word that its text has.

    The command line's package shares its name with topics and tables: of its names only those
    count that begin with one of its own modules.
    """
    package, *rest = name.split(".")
    at = PACKAGES.get(package)
    if at is None or (package == "gangline" and not file_of(at / rest[0]).exists()):
        return True
    for word in rest:
        if not file_of(at / word).exists():
            return re.search(rf"\b{word}\b", text_of(file_of(at))) is not None
        at /= word
    return True


def file_of(module: Path) -> Path:
    return module / "__init__.py" if module.is_dir() else module.with_suffix(".py")


def test_modules_that_a_text_names_are_there() -> None:
    named = {(path, name) for path in FILES for name in _MODULE.findall(text_of(path))}
    assert [f"{path}: {name}" for path, name in sorted(named) if not is_module(name)] == []


def test_a_module_that_moved_is_found() -> None:
    assert is_module("gangline_worker.agent.decide.core.AgentCore")
    assert not is_module("gangline_worker.agent.core")
    assert not is_module("gangline_worker.agent.decide.core.Nothing")
    assert is_module("gangline.scheduling")
    assert not is_module("gangline.local.nothing")


def test_files_that_pages_and_modules_name_are_there() -> None:
    known = {f"/{path.relative_to(ROOT)}" for path in FILES if path.suffix == ".py"}
    readers = (*prose.pages(), *(path for path in FILES if "src" in path.parts))
    named = {
        (path, name.rpartition("../")[2])
        for path in readers
        for name in _FILE.findall(_CODE_BLOCK.sub("", text_of(path)))
    }
    gone = [
        f"{path}: {name}"
        for path, name in sorted(named)
        if not any(one.endswith(f"/{name}") for one in known)
    ]
    assert gone == []
