"""GET /v1/live: the current values of all runs that the token may see, as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gangline_service.http_server import proven
from gangline_service.tokens import TokenBook
from gangline_tracker.loopback import is_local, token_of
from gangline_tracker.views.model import LiveRun


def live_app(current: Callable[[], list[LiveRun]], tokens: TokenBook) -> Starlette:
    """The application; `current` is called from the server's thread."""

    async def live(request: Request) -> Response:
        if not is_local(request):
            return JSONResponse({"error": "wrong Host, or an Origin header"}, status_code=403)
        principal = tokens.authenticate(token_of(request) or "")
        if principal is None:
            return JSONResponse({"error": "give a token as the bearer"}, status_code=401)
        if not proven(request.scope, principal.name):
            return JSONResponse(
                {"error": "your token has too many connections"},
                status_code=429,
                headers={"Retry-After": "1"},
            )
        wanted = set(request.query_params.getlist("run_id"))
        shown = [
            dataclasses.asdict(run)
            for run in current()
            if principal.reads(run.team) and (not wanted or run.run_id in wanted)
        ]
        return JSONResponse({"runs": shown}, headers={"Cache-Control": "no-store"})

    return Starlette(routes=[Route("/v1/live", live)])
