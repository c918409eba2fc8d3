"""What two agents show each other: good for one request, made from what agents alone can read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gangline_storage.errors import StoreError
from gangline_storage.local import LocalStore
from gangline_worker.agent.peers.seal import (
    SECRET_KEY,
    PeerRequest,
    Secret,
    new_nonce,
    proof,
    same,
    token,
)

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


def test_all_agents_of_a_store_have_the_same_secret(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    first, second = Secret(store), Secret(LocalStore(store.root))
    assert first.value() == second.value() == first.value()
    assert len(first.value()) == 32
    assert Secret(LocalStore(tmp_path / "other")).value() != first.value()


def test_a_secret_that_is_none_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put(SECRET_KEY, b"short")
    with pytest.raises(StoreError, match="delete it"):
        Secret(store).value()
