"""`gangline open`: which page, signed in by a code that works once."""

from __future__ import annotations

import pytest

from support.fakes.stub_gateway import Stub, job
from support.fixtures.commands import JOB
from support.harnesses.cli_run import Runner


@pytest.mark.parametrize(
    ("arguments", "page"),
    [((), "%2Fconsole%2F"), ((JOB,), f"%2Fconsole%2Fjobs%2F{JOB}")],
)
def test_the_address_signs_in_and_leads_to_the_page(
    gangline: Runner, stub: Stub, arguments: tuple[str, ...], page: str
) -> None:
    stub.on("POST", "/session/codes", {"code": "c0de", "expires_s": 60})
    stub.on("GET", f"/v1/training-jobs/{JOB}", job(job_id=JOB))
    shown = gangline("open", *arguments, "--print")
    assert shown.code == 0, shown.err
    assert shown.out.strip().endswith(f"/session?next={page}#c0de")
    assert "works once" in shown.err


def test_a_job_has_no_page_of_mlflow(gangline: Runner) -> None:
    shown = gangline("open", JOB, "--mlflow")
    assert shown.code == 2
    assert "leave out --mlflow" in shown.err
