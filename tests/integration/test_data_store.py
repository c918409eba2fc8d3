"""A token snapshot in a real S3 server: ranged gets, a damaged object, a server that goes away."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from gangline_schemas.job import JobSpec
from gangline_storage import StoreUnavailable
from gangline_storage.retry import Retry
from gangline_storage.s3 import S3Store
from gangline_worker.data import opening
from gangline_worker.data.blocks import DamagedBlock
from gangline_worker.data.cache import CacheFolder
from gangline_worker.data.manifest import Manifest
from gangline_worker.data.opening import open_samples
from gangline_worker.data.prepare import prepare
from gangline_worker.data.source import store_snapshot
from gangline_worker.data.tokenizer import ByteTokenizer
from gangline_worker.data.tokens import TokenReader
from gangline_worker.data.verify import verify
from support.builders.data import small_sources, text_bytes
from support.fakes.s3_server import NO_WAIT, BreakingProxy, S3Server, s3_server

__all__ = ["s3_server"]  # a fixture is used by being in this module

TOKENS = 100_000


@pytest.fixture
def snapshot(tmp_path: Path) -> tuple[Path, Manifest, bytes]:
    text = tmp_path / "text.txt"
    text.write_bytes(text_bytes(TOKENS - 1))
    out = tmp_path / "corpus"
    sources = small_sources([text], out, shard_tokens=16384, block_bytes=8192)
    manifest = prepare(out, sources, ByteTokenizer(), lambda _: None)
    return out, manifest, text.read_bytes() + b"\0"


def upload(store: S3Store, out: Path) -> None:
    for path in out.iterdir():
        store.put_file(path.name, path)


def reader_of(store: S3Store, cache: Path) -> TokenReader:
    folder = CacheFolder(cache, 1 << 30)
    return TokenReader(store_snapshot(store, folder), max_damaged=8, complain=str)


def tokens_of(reader: TokenReader, start: int, count: int) -> bytes:
    into = np.empty(count, dtype=np.int64)
    reader.read(start, into)
    return bytes(into.tolist())


def test_it_is_read_through_the_cache_and_damage_in_the_store_is_found(
    s3_server: S3Server, snapshot: tuple[Path, Manifest, bytes], tmp_path: Path
) -> None:
    out, manifest, text = snapshot
    store = s3_server.store()
    upload(store, out)
    assert verify(store, manifest) == []
    reader = reader_of(store, tmp_path / "cache")
    assert tokens_of(reader, 16000, 1000) == text[16000:17000]
    cached = {path.name for path in (tmp_path / "cache").glob("*/*")}
    assert cached == {"shard-000000.tok", "shard-000001.tok"}
    assert tokens_of(reader, 0, TOKENS) == text

    raw = bytearray((out / "shard-000003.tok").read_bytes())
    raw[8192] ^= 1
    store.put("shard-000003.tok", bytes(raw))
    [damage] = verify(store, manifest)
    assert (damage.file, damage.block) == ("shard-000003.tok", 1)
    assert tokens_of(reader_of(store, tmp_path / "cache"), 0, TOKENS) == text
    fresh = reader_of(store, tmp_path / "fresh")
    before = 3 * 16384 + 4096
    assert tokens_of(fresh, 0, before) == text[:before]
    with pytest.raises(DamagedBlock):
        tokens_of(fresh, before, 10)
    assert fresh.source.refetched == 1  # it was asked for twice


def test_a_job_reads_by_the_secrets_that_the_docs_name_and_waits_for_a_store_that_is_away(
    s3_server: S3Server,
    snapshot: tuple[Path, Manifest, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/data.md").read_text("utf-8")
    [example] = re.findall(r"```yaml\n(hyperparameters:.*?)```", page, re.DOTALL)
    given = {"name": "train", "team": "nlp", "run": "true", "resources": {"gpus": 1}}
    job = JobSpec.model_validate(given | yaml.safe_load(example))
    store = s3_server.store()
    upload(store, snapshot[0])
    server = s3_server.proxy.settings
    keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in job.secrets:
        monkeypatch.setenv(name, keys[name])
    named = str(job.hyperparameters["data"])
    network = BreakingProxy(server.port)
    url = named.replace("https://s3.example", network.endpoint)
    url = url.replace("bucket/corpus", f"{store.bucket}/{store.prefix}")
    at_once = Retry(attempts=1000, sleep=lambda _seconds: None)
    monkeypatch.setattr(opening.Retry, "within", lambda _seconds: at_once)
    network.lose_answers(20)
    data = open_samples(url, seq_len=16, seed=1, complain=str)
    assert data.digest() == snapshot[1].digest
    network.lose_answers(20)
    assert data.batch(0, 2, 0, 1).inputs.shape == (2, 16)
    assert network.lost == 40
    network.close()


def test_lost_answers_are_asked_for_again_and_a_server_that_is_away_is_told(
    s3_server: S3Server, snapshot: tuple[Path, Manifest, bytes], tmp_path: Path
) -> None:
    out, _, text = snapshot
    network = BreakingProxy(s3_server.proxy.settings.port)
    store = s3_server.store(endpoint=network.endpoint, retry=NO_WAIT)
    upload(store, out)
    reader = reader_of(store, tmp_path / "cache")
    network.lose_answers(2)
    assert tokens_of(reader, 0, 5000) == text[:5000]
    assert network.lost == 2
    network.lose_answers(1000)
    with pytest.raises(StoreUnavailable):
        tokens_of(reader, 50_000, 10)
    assert reader.blocks.quarantined == {}  # a store that is away is not damage
    network.lose_answers(0)
    assert tokens_of(reader, 0, TOKENS) == text
    network.close()
