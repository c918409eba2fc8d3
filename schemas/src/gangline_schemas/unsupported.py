"""Requests of a job file that Gangline does not support yet, or that would go wrong.

Such a job is rejected when it is submitted, because a field that is accepted and ignored is found
out late.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import takewhile

from gangline_schemas.image_reference import ImageReference
from gangline_schemas.job import JobSpec

LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun", "srun"}
)
"""Programs that start the ranks of a job themselves."""

LAUNCHER_MODULES = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "deepspeed.launcher.runner",
    }
)
_ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
_PREFIXES = frozenset({"exec", "env", "nohup", "time", "command"})
_SEPARATORS = frozenset({"&&", "||", ";", "|", "&", "(", "{", "then", "do", "else"})
_PYTHON = re.compile(r"^python[0-9.]*$")


def cannot_do(spec: JobSpec) -> str | None:
    """Why Gangline cannot run the job as its file says, and the way out; None: it can."""
    if spec.image is not None:
        try:
            ImageReference.parse(spec.image)
        except ValueError as error:
            return f"image: {error}"
    if spec.strategy == "deepspeed":
        return (
            "strategy: Gangline starts no DeepSpeed engine; leave strategy out (custom) and call "
            "deepspeed.initialize in your script"
        )
    launcher = launcher_of(spec)
    if launcher is not None:
        field = "command" if spec.command else "run"
        return (
            f"{field}: {launcher} would start once on each rank; give the command that it would "
            "start, such as python train.py (RANK, WORLD_SIZE and MASTER_ADDR are set)"
        )
    return None


def launcher_of(spec: JobSpec) -> str | None:
    """The launcher of ranks that the job's command starts; None when it starts none."""
    if spec.command:
        return _launcher(spec.command)
    lexer = shlex.shlex(spec.run or "", posix=True, punctuation_chars="();|&{}\n")
    lexer.whitespace_split, lexer.whitespace = True, " \t\r"
    try:
        words = list(lexer)
    except ValueError:
        return None
    while words:
        part = list(takewhile(lambda word: not _separates(word), words))
        found = _launcher(part)
        if found is not None:
            return found
        words = words[len(part) + 1 :]
    return None


def _separates(word: str) -> bool:
    return word in _SEPARATORS or not word.strip("\n;&|(){}")


def _launcher(words: Sequence[str]) -> str | None:
    """The launcher that one simple command starts."""
    start = 0
    while start < len(words) and (words[start] in _PREFIXES or _ASSIGNMENT.match(words[start])):
        start += 1
    if start == len(words):
        return None
    name = words[start].rpartition("/")[2]
    if name in LAUNCHERS:
        return name
    if not _PYTHON.match(name):
        return None
    options = takewhile(lambda word: word.startswith("-"), words[start + 1 :])
    for at, option in enumerate(options, start + 1):
        if option == "-m" and at + 1 < len(words) and words[at + 1] in LAUNCHER_MODULES:
            return f"python -m {words[at + 1]}"
    return None
