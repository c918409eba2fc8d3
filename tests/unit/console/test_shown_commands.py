"""Every command that a page of the console shows can be typed, and names files that exist."""

from __future__ import annotations

import ast
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from jinja2 import nodes
from typer import TyperException

from gangline.main import commands
from gangline_console.assets import PACKAGE, Assets
from gangline_console.render import environment

ROOT = Path(__file__).parents[3]
TEMPLATES = sorted([*PACKAGE.glob("templates/**/*.html"), *PACKAGE.glob("pages/**/*.html")])
VALUE = "1"
"""Stands for a value of the page, such as a job's id or a rank."""
_CODE = re.compile(r"(?:<code[^>]*>|`)(gangline .+?)(?:</code>|`)")
_VALUE, _CONDITION = re.compile(r"\{\{[^\"{}]*\}\}"), re.compile(r"\{%.*?%\}")
_FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)+\.(?:md|py|yaml)")


def shown(source: str) -> list[str]:
    """A template's commands: third arguments of empty(), and code that begins with gangline."""
    calls = environment(Assets({}, "")).parse(source).find_all(nodes.Call)
    empty = [call for call in calls if getattr(call.node, "attr", "") == "empty"]
    plain = _CONDITION.sub("", _VALUE.sub(VALUE, source))
    return [*(text(call.args[2]) for call in empty if len(call.args) > 2), *_CODE.findall(plain)]


def text(node: nodes.Expr) -> str:
    if isinstance(node, nodes.Concat):
        return "".join(map(text, node.nodes))
    return node.value if isinstance(node, nodes.Const) else VALUE


def wrong(typed: str) -> str | None:
    """Why a command of the shell, or a call in a script, fails before it does anything."""
    for name in _FILE.findall(typed):
        if not (ROOT / name).is_file():
            return f"no file {name}"
    if not typed.startswith("gangline "):
        return not_a_call(typed)
    command: Any = commands()
    program, *words = shlex.split(typed)
    while words and words[0] in getattr(command, "commands", {}):
        program, *words = words
        command = command.commands[program]
    try:
        command.make_context(program, [*words])
    except TyperException as error:
        return error.format_message()
    unknown = words and hasattr(command, "commands")
    return f"{program} has no command {words[0]}" if unknown else None


def not_a_call(typed: str) -> str | None:
    try:
        call = ast.parse(typed, mode="eval").body
    except SyntaxError:
        call = None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return "neither of gangline nor a call"
    module, name = ast.unparse(call.func.value), call.func.attr
    return None if hasattr(import_module(module), name) else f"{module} has no {name}"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_a_page_says_to_type_can_be_typed(path: Path) -> None:
    found = shown(path.read_text("utf-8"))
    assert {typed: why for typed in found if (why := wrong(typed))} == {}


def test_commands_of_pages_are_found_with_their_values() -> None:
    page = """{{ c.empty("None", "Ask `gangline jobs`.", "gangline logs " ~ job.job_id) }}
    <code class="command">gangline logs {{ job }}{% if rank %} --rank {{ rank }}{% endif %}</code>
    {% call c.empty("None", "") %}<p>gangline</p>{% endcall %}"""
    assert shown(page) == ["gangline logs 1", "gangline jobs", "gangline logs 1 --rank 1"]


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("gangline events JOB", "unexpected extra"),
        ("gangline explain", "Missing"),
        ("gangline logs JOB --gone", "No such option"),
        ("gangline logs JOB --rank last", "valid integer"),
        ("gangline node joins", "node has no command joins"),
        ("gangline submit examples/gone/job.yaml", "no file examples/gone/job.yaml"),
        ("docs/concepts/console.md", "neither of gangline"),
        ("python -m pytest", "neither of gangline"),
        ("gangline_worker" + ".reports({}, step)", "has no reports"),
    ],
)
def test_the_reader_of_commands_sees_what_is_wrong(typed: str, why: str) -> None:
    assert why in str(wrong(typed))
