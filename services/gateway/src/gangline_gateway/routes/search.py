"""/v1/search: jobs, runs, nodes, teams and documentation by words; /v1/docs: its pages."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Path, Query

from gangline_gateway import search
from gangline_gateway.app_context import App, AppContext, Caller, answers, router, visible_teams
from gangline_gateway.documentation import pages
from gangline_gateway.followed import NoStateError
from gangline_gateway.history import RunFilter
from gangline_gateway.history_access import Queries
from gangline_gateway.problems import ProblemError, invalid, not_found
from gangline_schemas.api.runs import Run
from gangline_schemas.api.search import DocPage, SearchResults
from gangline_service.tokens import Principal

searches = router("Search")
HISTORY_S = 1.5
_RUNS = 100


@searches.get(
    "/v1/search",
    operation_id="search",
    summary="Search everything",
    response_model=SearchResults,
    responses=answers(),
)
async def find(
    app: App,
    caller: Caller,
    q: Annotated[str, Query(min_length=1, max_length=100)],
    limit: Annotated[int, Query(ge=1, le=50, description="Of each kind.")] = 8,
) -> SearchResults:
    """Exact ids and names first. History that does not answer within 1.5 s is left out."""
    words, notes = search.words_of(q), []
    if not words:
        raise invalid("q", "must have a word")
    try:
        found = await asyncio.to_thread(
            lambda: [*search.live(app.tail.view(), words, caller.reads), *search.docs(words)]
        )
    except NoStateError:
        found = [*search.docs(words)]
        notes.append("jobs, nodes and teams are not known yet")
    try:
        runs = await asyncio.wait_for(asyncio.to_thread(_runs, app, caller, q.strip()), HISTORY_S)
        found += search.of_history(runs, words)
    except (ProblemError, TimeoutError):
        notes.append("ended runs of the past: history does not answer")
    return SearchResults(found=search.best(found, words, limit), notes=notes)


@searches.get(
    "/v1/docs/{page:path}",
    operation_id="getDoc",
    summary="A page of the documentation",
    response_model=DocPage,
    responses=answers(404),
)
def get_doc(
    caller: Caller,  # noqa: ARG001 - documents the token
    page: Annotated[str, Path(max_length=200, description="Like `guides/alerts.md`.")],
) -> DocPage:
    """The documentation of this release, as Markdown."""
    found = pages().get(page)
    if found is None:
        raise not_found("page")
    return DocPage(page=page, title=found.title, markdown=found.markdown)


def _runs(app: AppContext, caller: Principal, text: str) -> list[Run]:
    """Runs of this id, then those with the text in their name, newest first."""
    teams = visible_teams(caller)

    def read(queries: Queries) -> list[Run]:
        named = queries.history.runs(RunFilter(teams=teams, name_contains=text), limit=_RUNS)
        exact = queries.history.run(text, teams)
        rows = [row.run for row in named[:_RUNS]]
        return [*([exact.run] if exact is not None else []), *rows]

    return app.history.query(read)
