"""Names of images are read as Docker reads them."""

from __future__ import annotations

import pytest

from gangline_schemas.image_reference import ImageReference

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("pytorch/pytorch:2.8.0-cuda12.9", "docker.io/pytorch/pytorch:2.8.0-cuda12.9"),
        ("index.docker.io/ubuntu:24.04", "docker.io/library/ubuntu:24.04"),
        ("nvcr.io/nvidia/pytorch:26.01-py3", "nvcr.io/nvidia/pytorch:26.01-py3"),
        ("localhost/a", "localhost/a:latest"),
        ("127.0.0.1:5000/a/b/c:x", "127.0.0.1:5000/a/b/c:x"),
        ("[::1]:5000/a", "[::1]:5000/a:latest"),
        ("Registry/a", "Registry/a:latest"),
        (f"ubuntu@{DIGEST}", f"docker.io/library/ubuntu@{DIGEST}"),
        (f"ghcr.io/o/r:v1@{DIGEST}", f"ghcr.io/o/r:v1@{DIGEST}"),
    ],
)
def test_the_full_name(text: str, full: str) -> None:
    found = ImageReference.parse(text)
    assert str(found) == full
    assert ImageReference.parse(full) == found
    assert found.wanted == (found.digest or found.tag)


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "@", "/", "a//b", "Ubuntu", "a/../b", "https://ghcr.io/a", "a:", "a:b:c", "a b",
        "a@sha256:12", f"a@sha512:{'0' * 128}", "a:" + "t" * 129, "x/" * 140 + "a", "host:99x/a",
        "user:pw@host/a", "a\n", "-a", "[:::]/a", "[::1]:70000/a", "[1]/a", "host:65536/a",
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"image|tag|digest|registry"):
        ImageReference.parse(text)
