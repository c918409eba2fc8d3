"""A rank that prints without end: the middle is left out, with a line that says so."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_schemas.events.logs import LogLine
from gangline_worker.agent.runtime.log_lines import LogBatcher, Stream
from gangline_worker.agent.runtime.log_share import (
    BURST_BYTES,
    BYTES_PER_S,
    MOST_REST_S,
    SKIM_BYTES_PER_S,
    TAIL_BYTES,
    LogShare,
)

LINE = b"x" * 99 + b"\n"
READ = LINE * 600
SECRET = "pass-word-1234567890"


class Log:
    """A rank's log below a share whose clock stands until it is put on."""

    def __init__(self, share: LogShare | None = None, *secrets: str) -> None:
        self.now_s = 100.0
        self.share = share or LogShare(lambda: self.now_s)
        self.texts: list[str] = []
        self.numbers: list[int] = []
        self.logs = LogBatcher(frozenset(secrets), self._publish, lambda: 0, self.share)

    def _publish(self, first: int, lines: tuple[LogLine, ...]) -> None:
        self.texts += [line.text for line in lines]
        self.numbers += range(first, first + len(lines))

    def flood(self, size_bytes: int = BURST_BYTES, stream: Stream = "stdout") -> int:
        """So many bytes at once; the lines that were fed."""
        times = -(-size_bytes // len(READ))
        for _ in range(times):
            self.logs.feed(stream, READ)
        return times * 600

    def end(self) -> None:
        self.logs.feed("stdout", b"")
        self.logs.feed("stderr", b"")
        self.logs.finish()


def left_out(texts: list[str]) -> int:
    found = [re.match(r"gangline: (\d+) lines .* are left out here", text) for text in texts]
    return sum(int(each[1]) for each in found if each)


def test_above_the_bound_the_middle_is_left_out_and_one_line_counts_it() -> None:
    log = Log()
    log.logs.feed("stdout", b"first\n")
    fed = log.flood() + 2
    log.logs.feed("stderr", b"Traceback\nValueError: the reason\n")
    log.logs.feed("stdout", b"last\n")
    log.end()
    said = [text for text in log.texts if text.startswith("gangline: ")]
    assert len(said) == 1
    assert log.texts[0] == "first"
    assert log.texts.index("last") > log.texts.index(said[0])
    assert {"Traceback", "ValueError: the reason"} <= set(log.texts[-600:])
    assert log.logs.last_words == "Traceback\nValueError: the reason"
    whole = [text for text in log.texts if not text.startswith("gangline: ")]
    assert left_out(log.texts) + len(whole) == fed + 2
    assert len(whole) < (BURST_BYTES + 2 * TAIL_BYTES) / len(LINE)
    assert log.numbers == list(range(len(log.texts)))


def test_lines_are_taken_again_once_there_is_room() -> None:
    log = Log()
    fed = log.flood()
    taken = len(log.texts)
    log.logs.flush()
    assert len(log.texts) - taken < 600
    log.now_s += BURST_BYTES / BYTES_PER_S
    log.logs.flush()
    log.logs.feed("stdout", b"again\n")
    log.end()
    assert log.texts[-1] == "again"
    assert left_out(log.texts) + len(log.texts) - 1 == fed + 1


def test_a_rank_that_prints_little_loses_nothing_beside_one_that_prints_without_end() -> None:
    loud = Log()
    quiet = Log(loud.share)
    loud.flood()
    for number in range(50):
        quiet.logs.feed("stdout", b"step %d\n" % number)
        loud.flood(len(READ))
        quiet.logs.flush()
    assert quiet.texts == [f"step {number}" for number in range(50)]


def test_short_lines_count_for_their_work() -> None:
    log = Log()
    for _ in range(100):
        log.logs.feed("stdout", b"y\n" * 30_000)
    log.end()
    assert left_out(log.texts) > 2_800_000


def test_a_program_that_is_left_out_waits_for_a_bounded_pace_alone() -> None:
    log = Log()
    assert log.logs.feed("stdout", READ) == 0
    assert log.share.takes(b"x" * BURST_BYTES)
    before = log.logs.feed("stdout", READ)
    after = log.logs.feed("stdout", READ)
    assert abs(after - before - len(READ) / SKIM_BYTES_PER_S) < 1e-9
    log.now_s += before + after
    assert log.logs.feed("stdout", READ) <= 2 * len(READ) / SKIM_BYTES_PER_S
    for _ in range(2000):  # of many ranks, or of what a rank left behind
        assert log.logs.feed("stdout", READ) <= MOST_REST_S + 1e-9


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 300), st.booleans())
def test_no_part_of_a_secret_is_left_where_a_flood_is_cut(shift: int, newline: bool) -> None:
    log = Log(None, SECRET)
    assert log.share.takes(b"x" * (BURST_BYTES + 1))
    words = SECRET.encode() + (b"\n" if newline else b" ")
    count = (TAIL_BYTES + 2000) // len(words)
    log.logs.feed("stdout", b"begins " + SECRET.encode()[:9])
    log.logs.feed("stdout", b"z" * shift + words * count)
    log.end()
    text = "".join(log.texts)
    assert "word" not in text
    assert "12345" not in text
    assert "[redacted]" in text


def test_what_was_read_last_is_handed_over() -> None:
    log = Log()
    log.flood()
    log.logs.feed("stdout", b"half a li")
    log.logs.finish()
    after = Log()
    after.logs.adopt(log.logs.kept())
    after.logs.feed("stdout", b"ne\n")
    after.end()
    assert after.texts == ["half a line"]
    assert after.numbers == [len(log.texts)]
