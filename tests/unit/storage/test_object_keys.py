"""Which keys a store takes, for any text whatsoever."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gangline_storage import InvalidKey, LocalStore, check_key, check_prefix
from gangline_storage.keys import MAX_KEY_BYTES, MAX_PART_BYTES, TEMPORARY_PREFIX

ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=60)
PATH_LIKE = st.lists(
    st.sampled_from(["a", "b.bin", ".", "..", "", "~", "\\", "\0", "ü", "-", "..."]), max_size=6
).map("/".join)
GOOD_PART = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\\ufffe\uffff"),
    min_size=1,
    max_size=40,
).filter(lambda part: part not in (".", ".."))
GOOD_KEY = st.lists(GOOD_PART, min_size=1, max_size=4).map("/".join)


@given(st.one_of(ANY_TEXT, PATH_LIKE))
@example("../../etc/passwd")
@example("/etc/passwd")
@example("a/./b")
@example("\ud800")
def test_what_is_accepted_stays_below_the_root(key: str) -> None:
    try:
        check_key(key)
    except InvalidKey as error:
        str(error).encode("ascii")  # a message that any log takes
        return
    assert os.path.normpath(f"/root/{key}") == f"/root/{key}"
    assert not Path(key).is_absolute()
    assert all(character.isprintable() or ord(character) > 0x9F for character in key)
    assert len(key.encode()) <= MAX_KEY_BYTES
    check_prefix(key)
    for end in range(len(key)):
        check_prefix(key[:end])


@given(GOOD_KEY)
def test_ordinary_names_are_accepted_and_usable(key: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder) / "root")
        store.put(key, key.encode())
        assert store.get(key) == key.encode()
        assert [info.key for info in store.list()] == [key]


@given(GOOD_KEY, st.sampled_from(["..", ".", ""]), st.integers(0, 4))
def test_no_place_for_a_dot_part(key: str, part: str, place: int) -> None:
    parts = key.split("/")
    parts.insert(place, part)
    with pytest.raises(InvalidKey):
        check_key("/".join(parts))


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "empty"),
        ("a" * (MAX_PART_BYTES + 1), "more than 200 bytes"),
        ("ü" * (MAX_PART_BYTES // 2 + 1), "more than 200 bytes"),
        ("/".join(["abcdefghi"] * 91), "over the limit of 900"),
        (f"a/{TEMPORARY_PREFIX}x", "begins with"),
        ("a\x7fb", "character"),
        ("a\x85b", "character"),
        ("a\uffffb", "non-character"),
        ("a\ud800", "surrogate"),
    ],
)
def test_the_message_says_what_is_wrong(key: str, reason: str) -> None:
    with pytest.raises(InvalidKey, match=reason):
        check_key(key)


def test_the_longest_key_can_be_stored(tmp_path: Path) -> None:
    key = "/".join(["x" * MAX_PART_BYTES] * 4) + "/" + "y" * (MAX_KEY_BYTES - 4 * 201)
    assert len(key) == MAX_KEY_BYTES
    store = LocalStore(tmp_path)
    store.put(key, b"x", if_absent=True)
    assert store.get(key) == b"x"


def test_not_a_string() -> None:
    with pytest.raises(InvalidKey, match="must be a string"):
        check_key(b"bytes")  # type: ignore[arg-type]
