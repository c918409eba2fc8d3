"""Tokenizers of `prepare`: bytes, which is built in, and those of installed libraries.

`bytes`: each byte is its own token, and a 0 ends a document. `tokenizers:FILE` reads a
`tokenizer.json`; `transformers:NAME` is what AutoTokenizer finds under a name or in a folder.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gangline_storage import digest_bytes, digest_file
from gangline_worker.data.errors import DataError
from gangline_worker.data.manifest import TokenizerInfo

Tokens = NDArray[np.uint8] | NDArray[np.uint32]

BYTES = "bytes"
_FORMS = "give bytes, tokenizers:FILE or transformers:NAME"


class Tokenizer(Protocol):
    """Turns one document into tokens; the end of the document is not its business."""

    info: TokenizerInfo

    def encode(self, data: bytes) -> Tokens:
        """The tokens of UTF-8 text, shape (tokens,).

        Raises:
            UnicodeDecodeError: this tokenizer needs text and `data` is none.
        """
        ...


class ByteTokenizer:
    """Every byte is a token."""

    def __init__(self) -> None:
        self.info = TokenizerInfo(name=BYTES, vocab_size=256, end_of_document=0)

    def encode(self, data: bytes) -> Tokens:
        """The bytes themselves."""
        return np.frombuffer(data, dtype=np.uint8)


class FileTokenizer:
    """A `tokenizer.json` by the library tokenizers."""

    def __init__(self, name: str, path: Path, library: Any) -> None:
        self._encoder = library.Tokenizer.from_file(str(path))
        self._encoder.no_truncation()  # the file may say both, for the inputs of its model
        self._encoder.no_padding()
        size = _vocab_size(self._encoder.get_vocab())
        self.info = TokenizerInfo(name=name, vocab_size=size, digest=digest_file(path))

    def encode(self, data: bytes) -> Tokens:
        """Without special tokens."""
        ids = self._encoder.encode(data.decode(), add_special_tokens=False).ids
        return np.array(ids, dtype=np.uint32)


class NamedTokenizer:
    """Whatever AutoTokenizer of the library transformers finds."""

    def __init__(self, name: str, source: str, library: Any) -> None:
        self._encoder = library.AutoTokenizer.from_pretrained(source)
        fast = getattr(self._encoder, "backend_tokenizer", None)
        self.info = TokenizerInfo(
            name=name,
            vocab_size=_vocab_size(self._encoder.get_vocab()),
            end_of_document=self._encoder.eos_token_id,
            digest=None if fast is None else digest_bytes(fast.to_str().encode()),
        )

    def encode(self, data: bytes) -> Tokens:
        """Without special tokens."""
        ids = self._encoder.encode(data.decode(), add_special_tokens=False)
        return np.array(ids, dtype=np.uint32)


def _vocab_size(vocabulary: Mapping[str, int]) -> int:
    """All tokens are below it. Numbers may be left out, so it can be above the count of tokens."""
    return max(vocabulary.values(), default=-1) + 1


def find_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of that name.

    Raises:
        DataError: the name is not understood, its library is not installed, or it cannot load.
    """
    if name == BYTES:
        return ByteTokenizer()
    library_name, given, source = name.partition(":")
    if not given or not source or library_name not in {"tokenizers", "transformers"}:
        raise DataError(f"tokenizer {name!r} is not understood; {_FORMS}")
    try:
        library = importlib.import_module(library_name)
        if library_name == "tokenizers":
            return FileTokenizer(f"tokenizers:{Path(source).name}", Path(source), library)
        return NamedTokenizer(name, source, library)
    except ImportError:
        raise DataError(
            f"tokenizer {name!r} needs the package {library_name}, which is not installed; "
            "install it beside gangline-worker, or use bytes"
        ) from None
    except Exception as error:  # the libraries raise bare Exception and more
        raise DataError(f"tokenizer {name!r} cannot be loaded: {error}") from error
