"""Tokenizers of libraries: every document whole, and every token of their vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_worker.data.tokenizer import find_tokenizer

tokenizers = pytest.importorskip("tokenizers")


def saved(folder: Path, vocabulary: dict[str, int], *, longest: int | None = None) -> str:
    """The name of a tokenizer of whole words, which may cut and fill up what it is given."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if longest is not None:
        made.enable_truncation(longest)
        made.enable_padding(length=longest, pad_id=vocabulary["?"], pad_token="?")
    path = folder / "tokenizer.json"
    made.save(str(path))
    return f"tokenizers:{path}"


@pytest.mark.parametrize("words", [1, 20])
def test_a_tokenizer_made_for_short_inputs_keeps_the_whole_document(
    tmp_path: Path, words: int
) -> None:
    """Files of encoder models often say: at most 512 tokens, filled up to as many."""
    tokenizer = find_tokenizer(saved(tmp_path, {"?": 0, "a": 1}, longest=8))
    assert tokenizer.encode(b"a " * words).tolist() == [1] * words


def test_the_vocabulary_reaches_its_highest_token(tmp_path: Path) -> None:
    tokenizer = find_tokenizer(saved(tmp_path, {"?": 0, "a": 1, "b": 7}))
    assert tokenizer.info.vocab_size == 8
    assert tokenizer.encode(b"a b").tolist() == [1, 7]
