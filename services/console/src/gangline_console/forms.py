"""Forms: their fields, and the CSRF token that each one carries."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.requests import Request

FIELD = "csrf"
MOST_BYTES, MOST_FIELDS = 1 << 20, 2000


class FormError(Exception):
    """The form cannot be taken: status and text."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


@dataclass(frozen=True)
class Csrf:
    """CSRF tokens: an HMAC of the user's token, so they end with it and need no memory."""

    key: bytes

    @classmethod
    def of(cls, secret: str) -> Csrf:
        """With a key that is derived from the installation's secret."""
        return cls(hmac.digest(secret.encode(), b"gangline console csrf", "sha256"))

    def token(self, user_token: str) -> str:
        """The token for forms of this user."""
        return hmac.new(self.key, user_token.encode(), hashlib.sha256).hexdigest()

    def check(self, user_token: str, given: str) -> None:
        """Raises FormError unless it is this user's."""
        if not hmac.compare_digest(self.token(user_token).encode(), given.encode()):
            raise FormError(
                403, "this form was made for another session; load the page again, then send it"
            )


@dataclass(frozen=True)
class Form:
    """The fields of a form that was sent."""

    fields: dict[str, list[str]]

    def get(self, name: str, default: str = "") -> str:
        """The first value of a field."""
        values = self.fields.get(name)
        return values[0] if values else default

    def all(self, name: str) -> list[str]:
        """All values of a field."""
        return self.fields.get(name, [])


async def read_form(request: Request, csrf: Csrf, user_token: str) -> Form:
    """The form of a POST, once its token is right. Raises FormError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise FormError(415, "send a form (application/x-www-form-urlencoded)")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise FormError(413, f"the form is above {MOST_BYTES:,} bytes")
    try:
        fields = parse_qs(
            body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MOST_FIELDS
        )
    except ValueError:
        raise FormError(400, f"the form has more than {MOST_FIELDS:,} fields") from None
    form = Form(fields)
    csrf.check(user_token, form.get(FIELD))
    return form
