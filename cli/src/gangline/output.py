"""Where a command writes: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from gangline.render import Column, listing

ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class Output:
    """`json`: stdout holds JSON alone, one document, or one object a line where it streams."""

    json: bool = False

    def show(self, result: Any, text: str) -> None:
        """The command's result, for machines or for people."""
        if self.json:
            print(json.dumps(_plain(result), indent=2, ensure_ascii=False))
        elif text:
            print(text)

    def listing(
        self,
        items: Sequence[ItemT],
        columns: Sequence[Column[ItemT]],
        empty: str,
        result: Any = None,
    ) -> None:
        """Items as a table, or the sentence `empty` (to stderr) when there are none.

        As JSON the `result` if it is given, else the items.
        """
        if not items and not self.json:
            self.note(empty)
            return
        self.show(items if result is None else result, "" if self.json else listing(columns, items))

    def line(self, item: Any, text: str) -> None:
        """One item of a stream, flushed."""
        if self.json:
            text = json.dumps(_plain(item), separators=(",", ":"), ensure_ascii=False)
        print(text, flush=True)

    def note(self, text: str) -> None:
        """Something to know that is not the result."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _plain(value: Any) -> Any:
    """The value as JSON has it, with the names of its fields, as the gateway writes them."""
    return to_jsonable_python(value, by_alias=False)
