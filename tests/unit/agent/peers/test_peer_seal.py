"""What two agents show each other: good for one request, made from what agents alone can read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline_worker.agent.peers.seal import PeerRequest, new_nonce, proof, same, token

REQUEST = PeerRequest("job", 2, "node-a", "node-b", "/v1/copies/job/2", "0" * 32)


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, job_id="job-2"),
        replace(REQUEST, attempt=1),
        replace(REQUEST, client="node-c"),
        replace(REQUEST, server="node-c"),
        replace(REQUEST, path="/v1/copies/job/2/step-0000000005/rank-00000.bin"),
        replace(REQUEST, nonce=new_nonce()),
        replace(REQUEST, job_id="", client="jobnode-a"),
    ],
)
def test_a_token_is_good_for_one_request_of_one_attempt(other: PeerRequest) -> None:
    secret = bytes(32)
    assert same(token(secret, REQUEST), token(secret, replace(REQUEST)))
    assert not same(token(secret, other), token(secret, REQUEST))
    assert not same(proof(secret, other), proof(secret, REQUEST))


def test_neither_another_secret_nor_a_token_makes_a_proof() -> None:
    assert not same(token(bytes(32), REQUEST), token(b"1" * 32, REQUEST))
    assert not same(token(bytes(32), REQUEST), proof(bytes(32), REQUEST))
