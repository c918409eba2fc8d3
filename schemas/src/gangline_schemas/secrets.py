"""Texts that look like a credential: refused in specs, blacked out in logs and errors.

The patterns are the published token formats of their issuers; a name is judged by the words in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REDACTED = "[redacted]"

_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|APIKEY|API_KEY|"
    r"PRIVATE_KEY|ACCESS_KEY|SECRET_KEY|AUTH)($|_)",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"(?:AKIA|ASIA)[0-9A-Z]{16}"  # AWS access key id
    r"|gh[pousr]_[A-Za-z0-9]{36,}"  # GitHub
    r"|github_pat_[A-Za-z0-9_]{22,}"
    r"|glpat-[A-Za-z0-9_-]{20,}"  # GitLab
    r"|hf_[A-Za-z0-9]{30,}"  # Hugging Face
    r"|sk-[A-Za-z0-9_-]{20,}"  # OpenAI, Anthropic, Stripe-like
    r"|xox[abprs]-[A-Za-z0-9-]{10,}"  # Slack
    r"|gl_[A-Za-z0-9_-]{32,}"  # Gangline's own
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+"  # JSON web token
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|(?<=://)[^/\s:@]+:[^/\s:@]+(?=@)"  # user:password in a URL
)


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name would hold a credential (HF_TOKEN does, KEYBOARD not)."""
    return _NAME.search(name) is not None


def holds_secret(text: str) -> bool:
    """Whether the text contains something of a known credential format."""
    return _VALUE.search(text) is not None


def redact(text: str, known: Iterable[str] = ()) -> str:
    """The text with the `known` secret values and all known credential formats blacked out."""
    for value in sorted((value for value in known if value), key=len, reverse=True):
        text = text.replace(value, REDACTED)
    return _VALUE.sub(REDACTED, text)
