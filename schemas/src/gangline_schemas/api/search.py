"""Search over jobs, runs, nodes, teams and documentation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gangline_schemas.api.base import OPEN_WORD, Answer

FoundKind = Literal["job", "run", "node", "team", "doc"]


class Found(Answer):
    """One thing that fits."""

    kind: Annotated[FoundKind, OPEN_WORD]
    id: str = Field(description="Of a doc: its page and heading, like `guides/alerts.md#rules`.")
    title: str = Field(description="A job's or run's name, or the heading.")
    detail: str = Field(description="A state, or the page of a heading.")
    team: str
    exact: bool = Field(description="The id or the whole name is what was searched.")


class SearchResults(Answer):
    """The best first: exact ids and names, then by kind."""

    found: list[Found]
    notes: list[str] = Field(description="Parts that could not be searched in time.")


class DocPage(Answer):
    """A page of the documentation."""

    page: str
    title: str
    markdown: str
