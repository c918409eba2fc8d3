"""Checks that the documentation keeps to plain words; `make lint` runs it over all pages.

python tests/prose.py [PAGE...]

It prints one line for each finding, `PAGE:LINE: problem; what to do`, and exits with 1 then:
- a sentence with more than `MOST_WORDS` words, or a table cell with more than `MOST_CELL_WORDS`;
- a sentence that begins with What, Who or Whoever and does not ask;
- a line of prose with more than `MOST_COLUMNS` columns;
- a word of `RETIRED`.

Code blocks and comments are not prose. The words of a code span count towards the length of its
sentence and are never retired, so a name from the code is written as a code span.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_WORDS = 35
MOST_CELL_WORDS = 25
MOST_COLUMNS = 100

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
}
"""Patterns of words that the project no longer uses, each with the way out."""

_RETIRED = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): way for words, way in RETIRED.items()}
_WORD = re.compile(r"[\w'./%-]*\w[\w'./%-]*")
_BETWEEN = re.compile(r"(?<=[.!?:;])[)*_\"]*\s+(?=[A-Z`*(\"\[])")
_SUBJECT = re.compile(r"[*(\s]*(?:What|Who|Whoever)\b(?!-)")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_TARGET = re.compile(r"\]\([^)\s]*\)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


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


def findings(text: str) -> list[Finding]:
    """All that a page must change, in order."""
    found = [*_long_lines(text)]
    for block in blocks(text):
        plain = _without_code(block.text)
        found += _retired(block, plain)
        if block.kind == "cell":
            found += _long_cells(block, plain)
        elif block.kind == "prose":
            found += _sentences(block, plain)
    return sorted(found, key=lambda finding: finding.line)


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


def _sentences(block: Block, plain: str) -> Iterator[Finding]:
    start = 0
    for end in [*(gap.end() for gap in _BETWEEN.finditer(plain)), len(plain)]:
        sentence = _ITEM.sub("", plain[start:end], count=1)
        line = block.line + plain.count("\n", 0, start)
        words = len(_WORD.findall(sentence))
        if words > MOST_WORDS:
            yield Finding(line, f"a sentence of {words} words", "make it two")
        if _SUBJECT.match(sentence) and not sentence.rstrip(" *_)").endswith("?"):
            first = _WORD.findall(sentence)[0]
            yield Finding(line, f"a sentence begins with {first!r}", "name the actor")
        start = end


def _long_cells(block: Block, plain: str) -> Iterator[Finding]:
    words = len(_WORD.findall(plain))
    if words > MOST_CELL_WORDS:
        yield Finding(block.line, f"a table cell of {words} words", "move it below the table")


def _retired(block: Block, plain: str) -> Iterator[Finding]:
    for pattern, way_out in _RETIRED.items():
        for word in pattern.finditer(" ".join(plain.split("\n"))):
            line = block.line + plain.count("\n", 0, word.start())
            yield Finding(line, f"{word[0]!r} is retired", way_out)


def main(names: list[str]) -> int:
    """See the module."""
    count = 0
    for page in [Path(name).resolve() for name in names] or pages():
        name = page.relative_to(ROOT).as_posix()
        for finding in findings(page.read_text(encoding="utf-8")):
            print(f"{name}:{finding}")
            count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
