"""A character of each of Unicode's general categories, for names that anybody may send."""

from __future__ import annotations

import sys
import unicodedata
from functools import cache


@cache
def each_category() -> dict[str, str]:
    """A character by its category: Lu to Co, Cs (half of a pair) and Cn (not assigned)."""
    found: dict[str, str] = {}
    for code in range(sys.maxunicode + 1):
        found.setdefault(unicodedata.category(chr(code)), chr(code))
    return found


def names() -> dict[str, str]:
    """A name with such a character, by category; and odd sequences."""
    found = {category: f"a{character}b" for category, character in each_category().items()}
    return found | {
        "astral": "a\U0001f600b",
        "combined": "e\u0301",
        "composed": "\u00e9",
        "right to left": "\u202eloss",
        "joined": "a\u200db",
        "wide": "\uff4c\uff4f\uff53\uff53",
    }
