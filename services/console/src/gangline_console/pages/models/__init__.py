"""Models: protected aliases, versions with evidence, verdicts, history, data; forms to move."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from gangline_console.forms import FormError
from gangline_console.page import Page, View
from gangline_schemas.api.models import Check, Drift, ModelDetail, ModelList, Move, Promotion

VERDICTS: dict[str, tuple[str, str]] = {
    "pass": ("good", "✓"),
    "fail": ("bad", "✕"),
    "inconclusive": ("warn", "?"),
    "void": ("off", "⊘"),
    "waiting": ("busy", "◌"),
}
"""Kind and icon of each verdict."""
KINDS: dict[str, tuple[str, str]] = {
    "gate": ("good", "✓"),
    "rollback": ("warn", "↶"),
    "override": ("bad", "!"),
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")


async def _list(view: View) -> Response:
    found = await view.api.get("/v1/models", ModelList)
    return view.render("models/list.html", models=found.models)


async def _one(view: View) -> Response:
    model = await _model(view)
    place = f"/v1/models/{quote(model.model)}/aliases"
    drifts = await asyncio.gather(
        *(
            view.api.get(f"{place}/{quote(alias.alias)}/drift", Drift, {"team": model.team})
            for alias in model.aliases
            if alias.version
        )
    )
    return view.render("models/one.html", model=model, drifts=drifts, **_words())


async def _ask(view: View) -> Response:
    """The form that moves an alias: to a version by the gate, or back."""
    model = await _model(view)
    alias = next((one for one in model.aliases if one.alias == view.query("alias")), None)
    if alias is None:
        raise FormError(404, "there is no such protected alias")
    wanted = view.query("version")
    check = None
    if wanted:
        place = f"/v1/models/{quote(model.model)}/versions/{_number(wanted)}/check"
        query = {"alias": alias.alias, "team": model.team}
        check = await view.api.get(place, Check, query)
    return view.render("models/move.html", model=model, alias=alias, check=check, **_words())


async def _promote(view: View) -> Response:
    team, name, alias = (_plain(view.form.get(field)) for field in ("team", "model", "alias"))
    body: dict[str, Any] = {
        "version": _number(view.form.get("version")),
        "expected": _number(view.form.get("expected"), or_none=True),
    }
    reason = view.form.get("reason").strip()
    if view.form.get("override") == "true":
        if not reason:
            raise FormError(422, "an override needs a reason")
        body["override"] = {"person": view.who.name, "reason": reason}
    place = f"/v1/models/{name}/aliases/{alias}/promotions?team={team}"
    made = await view.api.post(place, Promotion, body)
    said = made.verdict or "waiting"
    return view.go(f"/models/{name}?team={team}&done={said}-{made.promotion}#promotions")


async def _roll_back(view: View) -> Response:
    team, name, alias = (_plain(view.form.get(field)) for field in ("team", "model", "alias"))
    body = {
        "expected": _number(view.form.get("expected")),
        "reason": view.form.get("reason").strip(),
    }
    place = f"/v1/models/{name}/aliases/{alias}/rollbacks?team={team}"
    await view.api.post(place, Move, body)
    return view.go(f"/models/{name}?team={team}#history")


async def _model(view: View) -> ModelDetail:
    name, team = _plain(view.path("name")), view.query("team")
    query = {"team": team} if team else {}
    return await view.api.get(f"/v1/models/{name}", ModelDetail, query)


def _plain(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise FormError(404, "there is no such model")
    return text


def _number(text: str, *, or_none: bool = False) -> int:
    """A version; 0 is none."""
    if or_none and text in {"", "0"}:
        return 0
    if not _NUMBER.fullmatch(text):
        raise FormError(422, "name the version by its number")
    return int(text)


def _words() -> dict[str, Any]:
    return {"verdicts": VERDICTS, "kinds": KINDS}


PAGE = Page(
    "models",
    "Models",
    nav="/models",
    icon="models",
    key="l",
    get={"/models": _list, "/models/{name}": _one, "/models/{name}/move": _ask},
    post={"/models/promote": _promote, "/models/rollback": _roll_back},
)
