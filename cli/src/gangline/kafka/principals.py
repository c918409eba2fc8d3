"""How the principal of each part is named on a Kafka cluster.

Users with passwords have the names of the parts. On Kubernetes a part is its service account, as in
`system:serviceaccount:gangline:gangline-{part}`. Processes of one pod share an account, so a part
may be several principals, and a principal several parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gangline.errors import CliError, ExitCode

_PART = "{part}"


@dataclass(frozen=True, slots=True)
class Principals:
    """`patterns` have `{part}` in them; `own` has the parts that are named otherwise."""

    patterns: tuple[str, ...] = (_PART,)
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of(self, part: str) -> tuple[str, ...]:
        """The principals of a part, without `User:`."""
        return self.own.get(part) or tuple(each.replace(_PART, part) for each in self.patterns)


NAMES = Principals()
"""Each part by its own name."""


def read_principals(options: Sequence[str], parts: Collection[str]) -> Principals:
    """From options: a pattern with `{part}`, or PART=PRINCIPAL, which may have `{part}` too.

    Raises CliError.
    """
    patterns: list[str] = []
    own: dict[str, tuple[str, ...]] = {}
    for option in options:
        name = option.removeprefix("User:")
        part, _, principal = name.partition("=")
        principal = principal.removeprefix("User:").replace(_PART, part)
        if part not in parts and _PART in name:
            patterns.append(name)
            continue
        if part not in parts or not principal:
            raise CliError(
                f"--principal {option}: neither a pattern with {_PART} nor PART=PRINCIPAL",
                f"a part is one of {', '.join(parts)}",
                ExitCode.USAGE,
            )
        own[part] = (*own.get(part, ()), principal)
    return Principals(tuple(patterns) or (_PART,), own)
