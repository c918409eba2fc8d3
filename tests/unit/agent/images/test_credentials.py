"""Files of logins that cannot be read are an error with a name, and show no value."""

from __future__ import annotations

import pytest

from gangline_worker.agent.images.credentials import BadCredentials, login_for


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"auths": []}',
        '{"auths": {"hub": {"auth": "hunter2"}}}',
        '{"auths": {"hub": {"auth": 1}}}',
        '{"auths": {"hub": {"username": "hunter2"}}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_named(text: str) -> None:
    with pytest.raises(BadCredentials, match=r"^the secret is not like") as refused:
        login_for("hub", {"the secret": text})
    assert "hunter2" not in str(refused.value)
