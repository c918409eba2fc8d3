"""A job's token names its attempt, and cannot be changed into another one."""

from __future__ import annotations

import pytest

from gangline_schemas.secrets import REDACTED, redact
from gangline_service.job_tokens import JobAttempt, is_job_token, make_token, read_token
from gangline_service.tokens import new_token

SECRET = bytes(32)
OF = JobAttempt("train-llama-0a1b2c3d4e", 3)
TOKEN = make_token(SECRET, OF)
EARLIER = make_token(SECRET, JobAttempt(OF.job_id, 2))


def test_a_token_is_read_with_its_secret_alone() -> None:
    assert read_token(SECRET, TOKEN) == OF
    assert read_token(b"1" * 32, TOKEN) is None


@pytest.mark.parametrize("attempt", [1, 10**9])
@pytest.mark.parametrize("job_id", ["x", "x" * 63, "a--b"])
def test_each_job_has_a_token_of_the_form(job_id: str, attempt: int) -> None:
    token = make_token(SECRET, JobAttempt(job_id, attempt))
    assert is_job_token(token)
    assert read_token(SECRET, token) == JobAttempt(job_id, attempt)


@pytest.mark.parametrize(
    "other",
    [
        TOKEN.replace("-3-", "-4-"), TOKEN.replace("-3-", "-03-"), TOKEN + "x", TOKEN + "\n",
        TOKEN.replace("4e", "4f"), TOKEN[:-1], TOKEN.upper(), " " + TOKEN, "", "gl_job_",
        TOKEN.replace("-3-", "-\u0663-"), EARLIER[:50] + TOKEN[50:],
    ],
)  # fmt: skip
def test_another_text_is_no_token(other: str) -> None:
    assert read_token(SECRET, other) is None


def test_no_user_s_token_is_taken_for_a_job_s() -> None:
    assert not is_job_token(new_token())
    assert not is_job_token("gl_job_" + new_token()[7:])


def test_a_token_in_a_log_line_is_removed() -> None:
    assert redact(f"token={TOKEN};") == f"token={REDACTED};"
