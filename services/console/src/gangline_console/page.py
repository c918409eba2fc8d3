"""Pages and the view that each of their handlers gets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from gangline_console.client import Api
from gangline_console.forms import Form
from gangline_schemas.api.cluster import TeamList, Whoami

Handler = Callable[["View"], Awaitable[Response]]
PREFIX = "/console"


@dataclass(frozen=True)
class Page:
    """One page: its routes, and its place in the navigation.

    `get` and `post` map paths below /console to handlers. A POST is handed on once its form has
    the CSRF token. `nav`: the path that the navigation links to; empty: it is not listed.
    `icon`: the name of a symbol in templates/components/icons.html. `key`: its letter, where
    another page's title begins with the same one. `timeless`: its texts do not grow old.
    `under`: the name of the listed page that the navigation marks for this one.
    """

    name: str
    title: str
    get: Mapping[str, Handler]
    post: Mapping[str, Handler] = field(default_factory=dict)
    nav: str = ""
    icon: str = "dot"
    key: str = ""
    timeless: bool = False
    under: str = ""

    @property
    def letter(self) -> str:
        """The key that leads to it after `g`."""
        return self.key or self.title[0].lower()


@dataclass(frozen=True)
class View:
    """One request of a signed-in user."""

    request: Request
    page: Page
    api: Api
    who: Whoami
    csrf: str
    environment: Environment
    navigation: tuple[Page, ...]
    form: Form = field(default_factory=lambda: Form({}))
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def query(self, name: str, default: str = "") -> str:
        """One value of the address's query."""
        return self.request.query_params.get(name, default).strip()

    def query_all(self, name: str) -> list[str]:
        """All values of one name in the address's query, without empty ones."""
        return [value for value in self.request.query_params.getlist(name) if value]

    async def teams(self) -> list[str]:
        """The names of the teams that the user sees; the token's own while REST cannot say."""
        found = await self.api.part("/v1/teams", TeamList)
        return sorted(self.who.teams if found is None else (team.team for team in found.teams))

    def path(self, name: str) -> str:
        """A part of the path, as `{name}` in the route; quote it before use in other paths."""
        return str(self.request.path_params[name])

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        """The page of a template, with these values."""
        page = self.environment.get_template(template)
        context = {
            "view": self,
            "who": self.who,
            "csrf": self.csrf,
            "page": self.page,
            "navigation": self.navigation,
            "prefix": PREFIX,
            "now": self.now,
        }
        return HTMLResponse(page.render(context | values), status)

    def go(self, path: str) -> Response:
        """Send the browser to another page of the console, after a form."""
        return RedirectResponse(f"{PREFIX}{path}", 303)
