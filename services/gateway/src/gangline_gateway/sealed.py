"""Texts that are encrypted by a random secret, such as a token, that only their owner has."""

from __future__ import annotations

import hashlib
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12


def seal(text: str, secret: str) -> str:
    """The text, encrypted by AES-GCM, in hex."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return (nonce + _cipher(secret).encrypt(nonce, text.encode(), None)).hex()


def unseal(sealed: str, secret: str) -> str | None:
    """The text; None if it was sealed by another secret, or changed."""
    try:
        raw = bytes.fromhex(sealed)
        nonce, encrypted = raw[:_NONCE_BYTES], raw[_NONCE_BYTES:]
        return _cipher(secret).decrypt(nonce, encrypted, None).decode()
    except (InvalidTag, ValueError):
        return None


def _cipher(secret: str) -> AESGCM:
    salted = b"gangline sealed\0" + secret.encode(errors="surrogatepass")
    return AESGCM(hashlib.sha256(salted).digest())
