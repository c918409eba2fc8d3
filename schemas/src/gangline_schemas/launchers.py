"""The launcher of ranks that a command starts: itself, or through programs that start others.

It reads words as a shell does: `nsys profile -o torchrun python train.py` starts no launcher, and
`bash -c "numactl -N 0 torchrun train.py"` starts one. A program that is not in the tables below may
start anything: its words say nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

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
MOST_SHELLS = 8
"""Shells in shells whose text is read."""

_ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*=")
_KEYWORDS = frozenset({"if", "elif", "then", "else", "while", "until", "do", "!", "{"})
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
_SHELL_VALUES = frozenset({"--rcfile", "--init-file"})
_PYTHON = re.compile(r"^python[0-9.]*$")
_HEREDOC = re.compile(r"<<-?[ \t]*['\"]?(\w+)")


@dataclass(frozen=True)
class _Wrapper:
    """How a program is called that starts another: NAME [SUBCOMMAND] [OPTION...] [PLACE...] IT."""

    values: frozenset[str] = frozenset()  # options whose value is the next word
    all_values: bool = False  # each short option has its value in the next word
    subcommands: frozenset[str] = frozenset()
    places: int = 0  # words before the command that are no options, such as timeout's seconds
    asks: frozenset[str] = frozenset()  # options with which it starts nothing
    modules: bool = False  # -m MODULE starts a module of Python

    def reaches(self, rest: list[str]) -> bool:
        """Whether a command follows; `rest` (next word last) then begins with it."""
        if self.subcommands:
            self._skip_options(rest)
            if not rest or rest.pop() not in self.subcommands:
                return False
        if self._skip_options(rest):
            return False
        del rest[max(0, len(rest) - self.places) :]
        return bool(rest)

    def _skip_options(self, rest: list[str]) -> bool:
        """Whether one of the options means that nothing is started."""
        while rest and rest[-1].startswith("-"):
            option = rest.pop()
            if option == "--":
                break
            if option in self.asks:
                return True
            if self.modules and option in {"-m", "--module"}:
                rest += ["-m", "python"]
                break
            short = self.all_values and not option.startswith("--")
            if rest and (short or option in self.values):
                rest.pop()
        return False


def _wrapper(
    values: str = "",
    *,
    sub: str = "",
    places: int = 0,
    asks: str = "",
    all_values: bool = False,
    modules: bool = False,
) -> _Wrapper:
    return _Wrapper(
        frozenset(values.split()),
        all_values,
        frozenset(sub.split()),
        places,
        frozenset(asks.split()),
        modules,
    )


_UV = (
    "-p --python -w --with --with-editable --with-requirements --extra --no-extra --group "
    "--no-group --only-group --env-file --project --directory --package --index --default-index "
    "-i --index-url --extra-index-url -f --find-links --config-file --cache-dir --from"
)
_CONDA = "-n --name -p --prefix --cwd"
_CONTAINER = "-B --bind --env --env-file --pwd -H --home -W --workdir -S --scratch --overlay"
_WRAPPERS = {
    "exec": _wrapper("-a"),
    "command": _wrapper(asks="-v -V"),
    "env": _wrapper("-u --unset -C --chdir -S --split-string"),
    "nohup": _wrapper(),
    "setsid": _wrapper(),
    "time": _wrapper("-o --output -f --format"),
    "timeout": _wrapper("-s --signal -k --kill-after", places=1),
    "nice": _wrapper("-n --adjustment"),
    "ionice": _wrapper("-c --class -n --classdata"),
    "chrt": _wrapper("-T -P -D", places=1),
    "taskset": _wrapper(places=1),
    "stdbuf": _wrapper("-i -o -e --input --output --error"),
    "numactl": _wrapper(
        "-i --interleave -m --membind -N --cpunodebind -C --physcpubind -p --preferred -w "
        "--weighted-interleave -P --preferred-many",
        asks="-s --show -H --hardware",
    ),
    "sudo": _wrapper("-u --user -g --group -h --host -p --prompt -C -D --chdir -R -T -r -t"),
    "doas": _wrapper("-u -C"),
    "xargs": _wrapper("-n -P -I -L -d -a -s -E"),
    "flock": _wrapper("-w --timeout -E", places=1),
    "unbuffer": _wrapper(),
    "tini": _wrapper("-p -e"),
    "dumb-init": _wrapper("-r --rewrite"),
    "strace": _wrapper("-o -e -p -s -u -E -a -b -I -O -P -S -X -U"),
    "ltrace": _wrapper("-o -e -p -s -u -a -n -x -l -F -D -A"),
    "nsys": _wrapper(
        "--trace --sample --output --delay --duration --capture-range --capture-range-end "
        "--force-overwrite --stop-on-exit --stats --export --gpu-metrics-devices --session-new",
        all_values=True,
        sub="profile launch",
    ),
    "ncu": _wrapper(
        "-o --export -k --kernel-name -c --launch-count -s --launch-skip --kernel-id --set "
        "--section --metrics --target-processes --replay-mode --devices --nvtx-include --log-file"
    ),
    "nvprof": _wrapper("-o --export-profile --log-file --metrics --events --profile-from-start"),
    "compute-sanitizer": _wrapper("--tool --log-file --save --target-processes"),
    "py-spy": _wrapper("-o --output -r --rate -f --format -d --duration", sub="record top"),
    "uv": _wrapper(_UV, sub="run", modules=True),
    "uvx": _wrapper(_UV),
    "poetry": _wrapper("-C --directory -P --project", sub="run"),
    "pipenv": _wrapper(sub="run"),
    "pdm": _wrapper("-p --project", sub="run"),
    "rye": _wrapper(sub="run"),
    "hatch": _wrapper("-e --env", sub="run"),
    "pixi": _wrapper("-e --environment --manifest-path", sub="run"),
    "conda": _wrapper(_CONDA, sub="run"),
    "mamba": _wrapper(_CONDA, sub="run"),
    "micromamba": _wrapper(_CONDA, sub="run"),
    "apptainer": _wrapper(_CONTAINER, sub="exec", places=1),
    "singularity": _wrapper(_CONTAINER, sub="exec", places=1),
}


def launcher_in(words: Sequence[str], shells: int = 0) -> str | None:
    """The launcher that one simple command starts; None when it starts none."""
    rest = list(reversed(words))  # the next word is last, so that taking it is cheap
    while rest:
        word = rest.pop()
        if word in _KEYWORDS or _ASSIGNMENT.match(word):
            continue
        name = word.rpartition("/")[2]
        if name in LAUNCHERS:
            return _launcher(name, rest)
        if _PYTHON.match(name):
            return _of_python(rest)
        if name in _SHELLS:
            text = _text_of_shell(rest)
            return launcher_in_text(text, shells + 1) if text and shells < MOST_SHELLS else None
        wrapper = _WRAPPERS.get(name)
        if wrapper is None or not wrapper.reaches(rest):
            return None
    return None


def launcher_in_text(text: str, shells: int = 0) -> str | None:
    """The launcher that a shell's text starts; None when it starts none or is not readable."""
    lexer = shlex.shlex(_without_heredocs(text), posix=True, punctuation_chars="();|&\n")
    lexer.whitespace_split, lexer.whitespace = True, " \t\r"
    try:
        words = list(lexer)
    except ValueError:
        return None
    for separates, part in groupby(words, _separates):
        found = None if separates else launcher_in(list(part), shells)
        if found is not None:
            return found
    return None


def _without_heredocs(text: str) -> str:
    """The text without the lines that a program reads as its input."""
    kept, end = [], None
    for line in text.split("\n"):
        if end is not None:
            end = None if line.strip() == end else end
            continue
        kept.append(line)
        heredoc = _HEREDOC.search(line)
        end = heredoc.group(1) if heredoc else None
    return "\n".join(kept)


def _separates(word: str) -> bool:
    return not word.strip("\n;&|()")


def _launcher(name: str, rest: list[str]) -> str | None:
    """`accelerate config` and the like start no ranks."""
    return name if name != "accelerate" or "launch" in rest else None


def _of_python(rest: list[str]) -> str | None:
    while rest:
        word = rest.pop()
        if not word.startswith("-"):
            name = word.rpartition("/")[2]
            return _launcher(name, rest) if name in LAUNCHERS else None
        at = next((at for at, letter in enumerate(word) if letter in "cmWX"), None)
        if word.startswith("--") or at is None:
            continue
        value = word[at + 1 :] or (rest.pop() if rest else "")
        if word[at] in "cm":
            launches = word[at] == "m" and value in LAUNCHER_MODULES
            return f"python -m {value}" if launches else None
    return None


def _text_of_shell(rest: list[str]) -> str | None:
    """The text after -c; None when the shell runs a file."""
    given = False
    while rest and rest[-1][:1] in {"-", "+"}:
        option = rest.pop()
        if option == "--":
            break
        if option.startswith("--"):
            takes_value = option in _SHELL_VALUES
        else:
            given = given or "c" in option
            takes_value = option[-1] in "oO"
        if takes_value and rest:
            rest.pop()
    return rest.pop() if given and rest else None
