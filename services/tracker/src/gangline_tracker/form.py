"""Fields of a body that is multipart/form-data: clients send long parameters of a query so. Pure.

clickhouse-connect does it for parameters that are longer than 4,096 bytes in an address.
"""

from __future__ import annotations

import re

FORM = "multipart/form-data"
_BOUNDARY = re.compile(rf"{FORM}; *boundary=\"?([\w'()+,./:=?-]{{1,70}})\"?", re.ASCII)
_HEAD = re.compile(
    rb'\r\ncontent-disposition: form-data; name="(\w{1,100})"(?:\r\ncontent-type: [^\r\n]{1,100})?',
    re.IGNORECASE,
)


def fields(kind: str, body: bytes) -> dict[str, str]:
    """The texts of a form by name; `kind` is its Content-Type.

    Raises ValueError for a file (external data), and for what cannot be read.
    """
    boundary = _BOUNDARY.fullmatch(kind)
    if boundary is None:
        raise ValueError("no boundary")
    before, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary[1].encode())
    if before or not parts or parts.pop().rstrip() != b"--":
        raise ValueError("not between its boundaries")
    found = {}
    for part in parts:
        head, _, value = part.partition(b"\r\n\r\n")
        named = _HEAD.fullmatch(head)
        if named is None:
            raise ValueError("a part is no text with a name")
        found[named[1].decode()] = value.decode()
    return found
