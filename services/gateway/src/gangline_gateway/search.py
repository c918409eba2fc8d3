"""Finds jobs, nodes, teams and documentation by words; runs of history come from ClickHouse.

Every word of the query must be part of an id, a name or a heading. Exact ids and names come first,
then beginnings, then the rest; within that the newest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from gangline_gateway.documentation import headings
from gangline_gateway.live_view import LiveView
from gangline_gateway.quota_state import state_of
from gangline_schemas.api.runs import Run
from gangline_schemas.api.search import Found

_ENOUGH = 500
"""Of one kind are looked at before the best are chosen."""


def words_of(query: str) -> tuple[str, ...]:
    """The words of a query, in lower case."""
    return tuple(query.lower().split())


def live(view: LiveView, words: tuple[str, ...], sees: Callable[[str], bool]) -> Iterator[Found]:
    """Jobs, nodes and teams that the caller may see. Raises NoStateError."""
    yield from islice(_jobs(view, words, sees), _ENOUGH)
    for node_id in view.nodes:
        if fits(words, node_id):
            node = view.node(node_id)
            yield _found("node", node_id, node_id, node.status if node else "", "", words)
    for team in state_of(view.quota).teams:
        if sees(team) and fits(words, team):
            yield _found("team", team, team, "", team, words)


def docs(words: tuple[str, ...]) -> Iterator[Found]:
    """Headings of the documentation; the titles of pages first."""
    hits = [one for one in headings() if fits(words, one.heading, one.page)]
    for one in sorted(hits, key=lambda hit: (not fits(words, hit.heading), "#" in hit.place)):
        page = "" if one.heading == one.page else one.page
        yield _found("doc", one.place, one.heading, page, "", words)


def of_history(runs: Iterable[Run], words: tuple[str, ...]) -> Iterator[Found]:
    """Runs that ClickHouse found."""
    for run in runs:
        yield _found("run", run.run_id, run.name, run.state, run.team, words)


def best(found: Iterable[Found], words: tuple[str, ...], each: int) -> list[Found]:
    """At most `each` of a kind, exact ones first. A run that is listed as a job is left out."""
    kinds: dict[str, dict[str, Found]] = {}
    for one in found:
        if one.kind != "run" or one.id not in kinds.get("job", {}):
            kinds.setdefault(one.kind, {}).setdefault(one.id, one)
    chosen = [
        one
        for of in kinds.values()
        for one in sorted(of.values(), key=lambda hit: _rank(hit, words))[:each]
    ]
    return sorted(chosen, key=lambda one: not one.exact)


def fits(words: tuple[str, ...], *texts: str) -> bool:
    """Whether each word is part of one of the texts."""
    lower = [text.lower() for text in texts]
    return all(any(word in text for text in lower) for word in words)


def _jobs(view: LiveView, words: tuple[str, ...], sees: Callable[[str], bool]) -> Iterator[Found]:
    for job in view.newest_first():
        if sees(job.team) and fits(words, job.job_id, job.name, job.user):
            yield _found("job", job.job_id, job.name, job.state, job.team, words)


def _found(
    kind: str, name: str, title: str, detail: str, team: str, words: tuple[str, ...]
) -> Found:
    whole = " ".join(words)
    return Found.model_validate(
        {
            "kind": kind,
            "id": name,
            "title": title,
            "detail": detail,
            "team": team,
            "exact": whole in {name.lower(), title.lower()},
        }
    )


def _rank(one: Found, words: tuple[str, ...]) -> tuple[bool, bool]:
    whole = " ".join(words)
    begins = one.id.lower().startswith(whole) or one.title.lower().startswith(whole)
    return not one.exact, not begins
