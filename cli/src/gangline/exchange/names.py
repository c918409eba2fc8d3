"""Names and texts that MLflow takes."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Mapping

from gangline.tracking.values import NAME_CHARS, storable

_OTHER = re.compile(r"[^\w .:/-]")


class Names:
    """Gives each name one that MLflow takes, and no two the same one."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, name: str) -> str:
        """The name itself where it may be."""
        if name not in self._given:
            free = wanted = allowed(name)
            number = 2
            while free in self._taken:
                free, number = f"{wanted[: NAME_CHARS - 6]}_{number}", number + 1
            self._taken.add(free)
            self._given[name] = free
        return self._given[name]

    @property
    def changed(self) -> dict[str, str]:
        """The given name of each that was changed."""
        return {name: given for name, given in self._given.items() if name != given}


def allowed(name: str) -> str:
    """A name like this one that MLflow takes."""
    plain = posixpath.normpath(_OTHER.sub("_", name[:NAME_CHARS]))
    while plain.startswith(("/", "../")):
        plain = plain.removeprefix("/").removeprefix("../")
    return "_" if plain in {"", ".", ".."} else plain


def fitting(
    texts: Mapping[str, str], longest: int, what: str, left: Counter[str]
) -> dict[str, str]:
    """Texts under allowed names; those that are too long are cut, and counted as `what`."""
    names = Names()
    found = {}
    for name, text in texts.items():
        left[f"{what} of more than {longest:,} characters (cut)"] += len(text) > longest
        found[names.of(name)] = storable(text[:longest])
    return found
