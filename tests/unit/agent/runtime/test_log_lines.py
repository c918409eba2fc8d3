"""Lines of ranks: numbered, bounded, and without secrets wherever they are cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_schemas.events.heartbeats import Trouble, TroubleKind
from gangline_schemas.events.logs import LINE_CHARS, LogLine
from gangline_schemas.rank_protocol import Report, Troubled
from gangline_worker.agent.runtime.log_lines import (
    LineSplitter,
    LogBatcher,
    secret_texts,
    without_secrets,
)

SECRET = "pass-word-\u00e4-1234567890"


def test_a_secret_is_found_when_half_a_character_of_it_has_arrived():
    secret = SECRET.encode()
    for cut in range(1, len(secret)):
        splitter = LineSplitter(secret_texts([SECRET]))
        found = splitter.feed(b"x" * LINE_CHARS + secret[:cut])
        found += splitter.feed(secret[cut:] + b"\n")
        assert "".join(found) == "x" * LINE_CHARS + "[redacted]", cut


@settings(deadline=None)
@given(st.binary(max_size=400), st.lists(st.integers(1, 40), max_size=20))
def test_lines_do_not_depend_on_how_they_arrive(data: bytes, sizes: list[int]):
    pieces, rest = [], data
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    splitter = LineSplitter(frozenset())
    found = [line for piece in [*pieces, rest] for line in splitter.feed(piece)] + splitter.end()
    whole = LineSplitter(frozenset())
    assert found == whole.feed(data) + whole.end()


@settings(deadline=None, max_examples=50)
@given(st.integers(LINE_CHARS - 60, LINE_CHARS + 60), st.integers(200, 5000))
def test_a_secret_is_found_wherever_a_long_line_is_cut(before: int, piece: int):
    data = b"x" * before + SECRET.encode() + b"y" * LINE_CHARS + b"\nnext\n"
    splitter = LineSplitter(secret_texts([SECRET]))
    found = [
        line for at in range(0, len(data), piece) for line in splitter.feed(data[at : at + piece])
    ]
    text = "".join(found)
    assert "word" not in text
    assert "[redacted]" in text
    assert found[-1] == "next"
    assert max(map(len, found)) <= LINE_CHARS
    assert text.count("y") == LINE_CHARS


def test_known_formats_are_redacted_too():
    splitter = LineSplitter(frozenset())
    token = "hf_" + "a1" * 20
    assert splitter.feed(f"using {token} now\n".encode()) == ["using [redacted] now"]


def test_each_line_of_a_secret_of_many_lines_is_redacted():
    splitter = LineSplitter(secret_texts(["first-part\nsecond-part"]))
    assert splitter.feed(b"a first-part\nsecond-part b\n") == ["a [redacted]", "[redacted] b"]


def test_lines_are_numbered_over_both_streams_in_batches():
    batches: list[tuple[int, tuple[LogLine, ...]]] = []
    logs = LogBatcher(frozenset(), lambda first, lines: batches.append((first, lines)), lambda: 7)
    logs.feed("stdout", b"one\ntw")
    logs.flush()
    logs.flush()
    logs.feed("stderr", b"bad\r\n")
    logs.feed("stdout", b"o")
    logs.feed("stdout", b"")
    logs.feed("stderr", b"")
    logs.flush()
    texts = [(first, [(line.stream, line.text) for line in lines]) for first, lines in batches]
    assert texts == [
        (0, [("stdout", "one")]),
        (1, [("stderr", "bad"), ("stdout", "two")]),
    ]
    assert logs.last_words == "bad"


def test_a_flood_is_published_in_bounded_batches():
    batches: list[int] = []
    logs = LogBatcher(frozenset(), lambda first, lines: batches.append(len(lines)), lambda: 0)
    logs.feed("stdout", b"x\n" * 5000)
    logs.flush()
    assert sum(batches) == 5000
    assert max(batches) <= 500


def test_a_secret_in_the_name_of_a_metric_is_blacked_out():
    said = Report(step=(1,), time_ms=(2,), metrics={"loss": (0.5,), f"auth/{SECRET}": (1.0,)})
    found = without_secrets(said, secret_texts([SECRET]))
    assert isinstance(found, Report)
    assert found.metrics == {"loss": (0.5,), "auth/[redacted]": (1.0,)}
    assert without_secrets(said, frozenset()) is said


def test_a_secret_in_what_a_rank_says_of_its_training_is_blacked_out():
    trouble = Trouble(kind=TroubleKind.LOSS_SPIKE, step=3, message=f"of {SECRET}")
    found = without_secrets(Troubled(trouble=trouble), secret_texts([SECRET]))
    assert isinstance(found, Troubled)
    assert found.trouble.message == "of [redacted]"


def test_a_note_of_our_own_is_numbered_among_the_lines():
    published: list[tuple[int, tuple[LogLine, ...]]] = []
    logs = LogBatcher(frozenset(), lambda first, lines: published.append((first, lines)), lambda: 7)
    logs.feed("stdout", b"one\n")
    logs.note("two")
    logs.flush()
    logs.note("three")
    logs.flush()
    assert [(first, [line.text for line in lines]) for first, lines in published] == [
        (0, ["one", "gangline: two"]),
        (2, ["gangline: three"]),
    ]
    assert logs.last_words == ""
