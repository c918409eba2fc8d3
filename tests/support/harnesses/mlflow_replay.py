"""The same requests to two MLflow servers, with what each chose itself left out of the answers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import httpx

API = "/api/2.0/mlflow"
CHOSEN = frozenset(
    {
        "creation_time", "creation_timestamp", "creation_timestamp_ms", "last_update_time",
        "last_updated_timestamp", "last_updated_timestamp_ms", "start_time", "end_time",
    }
)  # fmt: skip
"""Times of the server."""


@dataclass(frozen=True)
class Request:
    """One request. `<name>` in it stands for an id that an earlier answer had."""

    method: str
    path: str
    body: Any = None
    query: str = ""
    keep: tuple[str, ...] = ()
    """Where in the answer an id is, to be known as the last part."""
    raw: bytes | None = None
    kind: str = "application/json"

    def __str__(self) -> str:
        shown = self.raw if self.raw is not None else json.dumps(self.body)
        return f"{self.method} {self.path}?{self.query} {shown!r}"[:300]


@dataclass
class Replay:
    """One server as a client of a team sees it."""

    url: str
    team: str
    token: str = "none"
    ids: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        headers = {"X-MLFLOW-WORKSPACE": self.team, "Authorization": f"Bearer {self.token}"}
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def ask(self, asked: Request) -> tuple[int, Any]:
        """The status and the answer, with ids by name."""
        content = asked.raw
        if content is None and asked.body is not None:
            content = self._filled(json.dumps(asked.body)).encode()
        path = f"{self._filled(asked.path)}?{self._filled(asked.query)}".rstrip("?")
        answer = self._client.request(
            asked.method, path, content=content, headers={"Content-Type": asked.kind}
        )
        try:
            found = answer.json()
        except ValueError:
            return answer.status_code, answer.text
        if asked.keep and answer.status_code == 200:
            part = found
            for name in asked.keep[:-1]:
                part = part[name]
            self.ids[asked.keep[-1]] = str(part)
        return answer.status_code, self._plain(found)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _filled(self, text: str) -> str:
        return re.sub(r"<(\w+)>", lambda found: self.ids.get(found[1], found[0]), text)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._plain(part) for name, part in value.items() if name not in CHOSEN}
        if isinstance(value, list):
            parts = [self._plain(part) for part in value]
            if all(isinstance(part, dict) and "key" in part for part in parts):
                parts.sort(key=lambda part: str(part["key"]))  # of one metric, the order stays
            return parts
        if isinstance(value, str):
            for name, known in self.ids.items():
                if len(known) > 8:
                    value = value.replace(known, f"<{name}>")
            return re.sub(r"\b1\d{12}\b", "<ms>", value)
        return value


def first_difference(wanted: Any, found: Any, place: str = "") -> str:
    """Where two answers differ first; "" when they are equal."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name in sorted({*wanted, *found}):
            part = first_difference(wanted.get(name), found.get(name), f"{place}.{name}")
            if part:
                return part
        return ""
    if isinstance(wanted, list | tuple) and isinstance(found, list | tuple):
        pairs = enumerate(zip(wanted, found, strict=False))
        parts = (first_difference(a, b, f"{place}[{n}]") for n, (a, b) in pairs)
        if part := next(filter(None, parts), ""):
            return part
    return "" if wanted == found else f"{place}: genuine {wanted!r:.400}, ours {found!r:.400}"
