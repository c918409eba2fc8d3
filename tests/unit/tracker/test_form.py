"""Long parameters come in a form, as clickhouse-connect and urllib3 write it."""

from __future__ import annotations

import pytest
from urllib3 import encode_multipart_formdata

from gangline_tracker.form import fields

ASKED = {"query": "SELECT {x:String}\n FORMAT Native", "param_x": "'é\r\n--\r\n'" * 5}


def test_a_form_has_the_texts_that_were_sent() -> None:
    body, kind = encode_multipart_formdata(ASKED)
    assert fields(kind, body) == ASKED


@pytest.mark.parametrize("change", ["file", "kind", "cut", "preamble", "name"])
def test_what_is_no_form_of_texts_is_refused(change: str) -> None:
    sent = {**ASKED, "table": ("rows.csv", "1,2")} if change == "file" else ASKED
    body, kind = encode_multipart_formdata(sent)
    kind = "multipart/form-data" if change == "kind" else kind
    body = body[:-8] if change == "cut" else body
    body = b"x" + body if change == "preamble" else body
    body = body.replace(b"name=", b"nome=") if change == "name" else body
    with pytest.raises(ValueError, match=r"boundar|no text"):
        fields(kind, body)
