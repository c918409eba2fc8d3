"""The platform's health, refused records, and the search over everything."""

from __future__ import annotations

from gangline.sdk.calls import Calls
from gangline_schemas.api.health import DeadLetterPage, PlatformHealth
from gangline_schemas.api.search import SearchResults


class Health(Calls):
    """The platform's health, refused records, and the search over everything."""

    def health(self) -> PlatformHealth:
        """The processes of all services; members see no checks and partitions."""
        return self._read(PlatformHealth, "GET", "/v1/health")

    def dead_letters(
        self, topic: str | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> DeadLetterPage:
        """Records that services refused, the newest first. Needs an admin."""
        params = {"topic": topic, "limit": limit, "cursor": cursor}
        return self._read(DeadLetterPage, "GET", "/v1/dead-letters", params=params)

    def search(self, words: str, *, limit: int = 8) -> SearchResults:
        """Jobs, runs, nodes, teams and documentation; at most `limit` of each kind."""
        params = {"q": words, "limit": limit}
        return self._read(SearchResults, "GET", "/v1/search", params=params)
