"""Checks that documentation and code keep to plain words; `make lint` runs it.

python tests/prose.py [FILE...]

It reads all pages, the modules of `FOLDERS` and of tests/, and the comments of `SETTINGS`. It
prints one line for each finding, `FILE:LINE: problem; what to do`, and exits with 1 then:
- a sentence with more than `MOST_WORDS` words, or a table cell with more than `MOST_CELL_WORDS`;
- a sentence that begins with What, Who or Whoever and does not ask;
- a line of prose with more than `MOST_COLUMNS` columns;
- a word of `RETIRED`;
- a file or a class with a word of `RETIRED_NAMES` in its name.

Of a module it reads the docstrings, the comments and, for retired words and the beginnings of
sentences, each other string that has a space. The linter checks the columns of a module. Of a
test it reads docstrings and comments alone: its other strings are inputs and answers. There a
sentence may begin with What, as it names the subject of the tests: "What a rank reports".

Code blocks and comments of a page are not prose. The words of a code span count towards the
length of its sentence and are never retired, so a name from the code is written as a code span.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_WORDS = 35
MOST_CELL_WORDS = 25
MOST_COLUMNS = 100

FOLDERS = (
    "cli/src",
    "deploy/grafana",
    "examples",
    "libs",
    "schemas/src",
    "services",
    "tools",
    "worker/src",
)
"""Folders whose modules keep to plain words."""

TESTS = "tests"
SETTINGS = ("deploy/**/*.yaml", "deploy/**/*.toml", "deploy/containers/*", "examples/**/*.yaml")
"""Files whose lines that begin with # are prose."""

TELLS_OF_WORDS = ("tests/prose.py", "tests/unit/deploy/test_prose.py")
"""Not read: retired words are their subject."""

RETIRED = {
    r"anew": "say 'again' or 'from scratch'",
    r"told": "say 'reported', 'logged' or 'sent'",
    r"tells? (?:him|it|them|all)": "say 'reports' or 'sends'",
    r"(?:go|goes|going|went) on": "say 'continue' or 'resume'",
    r"shall": "say 'must' or 'will'",
    r"of before": "say 'earlier'",
    r"but for": "say 'except'",
    r"mend(?:s|ed|ing)?": "say 'fix'",
    r"nobody|somebody|whoever": "name the actor: 'no team', 'a user'",
    r"lets? go|letting go": "say 'release', 'close' or 'reject'",
    r"vouch(?:es|ed)?(?: for)?": "say 'confirm'",
    r"door|doors": "say 'server' or 'query server'",
    r"hears?|heard|hearing": "say 'receives' or 'learns'",
    r"premises|furniture|desks?|guests?": "say 'host resources', 'mount', 'auth' or 'proxy'",
    r"rooms": "say 'sandboxes' or 'free GPUs'",
    r"scenes?": "say 'builder', 'fixture', 'harness' or 'session'",
    r"telling|awaiting": "say 'reasons' or 'waiting'",
    r"perform(?:s|ed|ing)?": "say 'run' or 'execute'",
    r"h(?:old|olds|eld|olding) (?:\S+ )?GPUs?": "say 'allocated' or 'reserved'",
}
"""Patterns of words that the project no longer uses, each with the way out."""

RETIRED_NAMES = frozenset(
    {
        "asked", "asking", "awaiting", "clearing", "desk", "door", "doors", "furniture", "ground",
        "guest", "guests", "heard", "hearing", "look", "looks", "past", "perform", "places",
        "premises", "room", "rooms", "scene", "scenes", "telling", "told",
    }
)  # fmt: skip
"""Words that no file and no class has in its name. As prose some of them are fine: free room."""

_RETIRED = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): way for words, way in RETIRED.items()}
_ANY_RETIRED = re.compile(rf"\b(?:{'|'.join(RETIRED)})\b", re.IGNORECASE)
_WORD = re.compile(r"[\w'./%-]*\w[\w'./%-]*")
_BETWEEN = re.compile(r"(?<=[.!?:;])[)*_\"]*\s+(?=[A-Z`*(\"\[])")
_SUBJECT = re.compile(r"[*(\s]*(?:What|Who|Whoever)\b(?!-)")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_TARGET = re.compile(r"\]\([^)\s]*\)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CLASS = re.compile(r"^\s*class (\w+)", re.MULTILINE)
_STRING_OR_COMMENT = re.compile(
    r'''"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'''
    r"""|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"""
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(\#[^\n]*)""",
    re.DOTALL,
)
"""Of valid Python 3.11; the comment is a group."""
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Za-z][a-z]*")


@dataclass(frozen=True)
class Finding:
    """One place to change; `line` counts from 1."""

    line: int
    problem: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.line}: {self.problem}; {self.way_out}"


@dataclass(frozen=True)
class Block:
    """A paragraph, list item, heading or table cell, with the line that it begins on."""

    line: int
    text: str
    kind: str


def pages() -> list[Path]:
    """All pages that people read: at the root, in docs/ and in deploy/."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")]
    return sorted(found)


def modules() -> list[Path]:
    """The modules of `FOLDERS` and of tests/."""
    found = (module for folder in (*FOLDERS, TESTS) for module in (ROOT / folder).rglob("*.py"))
    return sorted(set(found) - {ROOT / name for name in TELLS_OF_WORDS})


def settings() -> list[Path]:
    """The files of `SETTINGS`."""
    found = (file for pattern in SETTINGS for file in ROOT.glob(pattern) if file.is_file())
    return sorted(found)


def findings_of(file: Path) -> list[Finding]:
    """All that a file must change, in order."""
    name, text = file.relative_to(ROOT), file.read_text(encoding="utf-8")
    found = _names(name.stem, 1)
    if file.suffix == ".md":
        return [*found, *findings(text)]
    if file.suffix == ".py":
        return [*found, *module_findings(text, test=name.parts[0] == TESTS)]
    return [*found, *settings_findings(text)]


def settings_findings(text: str) -> list[Finding]:
    """All that the comments of a file of `SETTINGS` must change, in order."""
    lines = (line.strip() for line in text.split("\n"))
    return list(_prose("\n".join(line.lstrip("# ") if line[:1] == "#" else "" for line in lines)))


def module_findings(source: str, *, test: bool = False) -> list[Finding]:
    """All that a module must change, in order; `line` may be the first of a joined string."""
    found = list[Finding]()
    for name in _CLASS.finditer(source):
        found += _names(name[1], 1 + source.count("\n", 0, name.start(1)))
    prose, messages = _docstrings(source)
    for first, text in [*prose, *_comments(source)]:
        found += [_moved(finding, first) for finding in _prose(text, test=test)]
    for first, text in [] if test else messages:
        for block in blocks(text):
            plain = _without_code(block.text)
            found += [_moved(f, first) for f in [*_retired(block, plain), *_begins(block, plain)]]
    return sorted(found, key=lambda finding: finding.line)


def findings(text: str) -> list[Finding]:
    """All that a page must change, in order."""
    return sorted([*_long_lines(text), *_prose(text)], key=lambda finding: finding.line)


def _names(name: str, line: int) -> list[Finding]:
    """The retired words in the name of a file or a class."""
    words = sorted(RETIRED_NAMES & {part.lower() for part in _PART.findall(name)})
    return [
        Finding(
            line,
            f"{word!r} in {name} is retired",
            "use the field's word: docs/reference/glossary.md",
        )
        for word in words
    ]


def _prose(text: str, *, test: bool = False) -> Iterator[Finding]:
    for block in blocks(text):
        plain = _without_code(block.text)
        yield from _retired(block, plain)
        if block.kind == "cell":
            yield from _long_cells(block, plain)
        elif block.kind == "prose":
            yield from _long_sentences(block, plain)
            if not test:
                yield from _begins(block, plain)


def _moved(finding: Finding, first: int) -> Finding:
    """The finding in a file where its text begins on line `first`."""
    return replace(finding, line=finding.line + first - 1)


def _docstrings(source: str) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Strings of a module with their lines: those that stand alone, and others with a space."""
    alone, others = dict[int, tuple[int, str]](), list[tuple[int, str]]()
    for node in ast.walk(ast.parse(source)):  # parents come before their children
        match node:
            case ast.Expr(value=ast.Constant(value=str(text)) as constant):
                first, _, rest = text.partition("\n")
                text = f"{first.strip()}\n{textwrap.dedent(rest)}"
                alone[id(constant)] = (constant.lineno, text)
            case ast.Constant(value=str(text)) if id(node) not in alone and " " in text:
                others.append((node.lineno, text))
    return list(alone.values()), others


def _comments(source: str) -> list[tuple[int, str]]:
    """Comments with their first lines; lines that are only comments are one text together."""
    found, after, line, counted = list[tuple[int, str]](), 0, 1, 0
    for token in _STRING_OR_COMMENT.finditer(source):
        if token[1] is None:
            continue
        line, counted = line + source.count("\n", counted, token.start()), token.start()
        alone = not source[source.rfind("\n", 0, counted) + 1 : counted].strip()
        text = token[1].lstrip("# ")
        if alone and line == after:
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{text}")
        else:
            found.append((line, text))
        after = line + 1 if alone else 0
    return found


def blocks(text: str) -> Iterator[Block]:
    """The prose of a page in pieces; code blocks are left out."""
    text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    first, lines = 0, list[str]()
    for number, line, kind in _kinds(text):
        if lines and (kind != "more"):
            yield Block(first, "\n".join(lines), "prose")
            lines = []
        if kind in {"prose", "more"}:
            first = first if lines else number
            lines.append(line)
        elif kind == "heading":
            yield Block(number, line.lstrip("# "), kind)
        elif kind == "row":
            yield from (Block(number, cell, "cell") for cell in re.split(r"(?<!\\)\|", line))
    if lines:
        yield Block(first, "\n".join(lines), "prose")


def _kinds(text: str) -> Iterator[tuple[int, str, str]]:
    """Each line: `prose` begins a block, `more` continues it."""
    fence, blank, open_block = "", True, False
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if fence or bare.startswith("```"):
            kind = "code"
            fence = "" if fence and bare.startswith(fence) else fence or "```"
        elif not bare:
            kind = "blank"
        elif line.startswith("#"):
            kind = "heading"
        elif bare.startswith("|"):
            kind = "row"
        elif blank and line.startswith("    ") and not _ITEM.match(line):
            kind = "code"
        else:
            kind = "more" if open_block and not _ITEM.match(line) else "prose"
        blank = kind == "blank" or (kind == "code" and blank)
        open_block = kind in {"prose", "more"}
        yield number, line, kind


def _without_code(text: str) -> str:
    """Code spans as so many times `x`, links by their text alone; lines stay lines."""
    text = _CODE.sub(lambda span: "`" + re.sub(r"\S+", "x", span[2]) + "`", text)
    return _TARGET.sub("]", text)


def _long_lines(text: str) -> Iterator[Finding]:
    for number, line, kind in _kinds(text):
        unbroken = " " not in _ITEM.sub("", line).strip()
        if kind in {"prose", "more", "heading"} and len(line) > MOST_COLUMNS and not unbroken:
            yield Finding(number, f"{len(line)} columns", f"break it at {MOST_COLUMNS}")


def _long_sentences(block: Block, plain: str) -> Iterator[Finding]:
    for line, sentence in _split(block, plain):
        words = len(_WORD.findall(sentence))
        if words > MOST_WORDS:
            yield Finding(line, f"a sentence of {words} words", "make it two")


def _begins(block: Block, plain: str) -> Iterator[Finding]:
    for line, sentence in _split(block, plain):
        if _SUBJECT.match(sentence) and not sentence.rstrip(" *_)").endswith("?"):
            first = _WORD.findall(sentence)[0]
            yield Finding(line, f"a sentence begins with {first!r}", "name the actor")


def _split(block: Block, plain: str) -> Iterator[tuple[int, str]]:
    """The sentences of a block, each with its line."""
    start = 0
    for end in [*(gap.end() for gap in _BETWEEN.finditer(plain)), len(plain)]:
        line = block.line + plain.count("\n", 0, start)
        yield line, _ITEM.sub("", plain[start:end], count=1)
        start = end


def _long_cells(block: Block, plain: str) -> Iterator[Finding]:
    words = len(_WORD.findall(plain))
    if words > MOST_CELL_WORDS:
        yield Finding(block.line, f"a table cell of {words} words", "move it below the table")


def _retired(block: Block, plain: str) -> Iterator[Finding]:
    joined = plain.replace("\n", " ")
    for pattern, way_out in _RETIRED.items() if _ANY_RETIRED.search(joined) else ():
        for word in pattern.finditer(joined):
            line = block.line + plain.count("\n", 0, word.start())
            yield Finding(line, f"{word[0]!r} is retired", way_out)


def main(names: list[str]) -> int:
    """See the module."""
    count = 0
    read = [Path(name).resolve() for name in names] or [*pages(), *modules(), *settings()]
    for file in read:
        for finding in findings_of(file):
            print(f"{file.relative_to(ROOT).as_posix()}:{finding}")
            count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
