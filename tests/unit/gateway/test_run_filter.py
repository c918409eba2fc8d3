"""The filter language: errors say where and name what is known; no text of a filter is SQL."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline_gateway.curves import between, smoothed
from gangline_gateway.filter_words import Comparison, FilterError, Key, read_filter
from gangline_gateway.run_filter import RunQuery
from gangline_gateway.sql_parts import CursorError, json_cursor


def test_the_words_of_a_filter() -> None:
    text = "Params.`my lr` = 'it''s' AND metrics.eval/loss<=-2.5e-1 and name NOT IN ('a', \"b\")"
    assert read_filter(text) == (
        Comparison(Key("param", "my lr", 1), "=", "it's"),
        Comparison(Key("metric", "eval/loss", 30), "<=", -0.25),
        Comparison(Key("attribute", "name", 61), "NOT IN", ("a", "b")),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metrics.loss < 'x'", "at character 1: metric loss is a number"),
        ("metrics.loss > 1e999", "at character 16: 1e999 is too large a number"),
        ("gpuhours > 1", "at character 1: there is no attribute 'gpuhours'; known are attempts,"),
        ("status = 'FINISHED'", "there is no attribute 'status'"),
        ("params.lr = 'x", "at character 13: this quotation has no end"),
        (
            "params.lr = 0.1 or gpus > 1",
            "at character 17: expected AND or the end (there is no OR)",
        ),
        ("params.lr", "at character 10: expected one of =, !=, <"),
        ("team > 'a'", "its operators are =, !=, LIKE, ILIKE, IN, NOT IN"),
        ("foo.bar = 1", "at character 1: 'foo' is not known; write params, metrics, tags"),
        ("started_at > 'yesterday'", "'yesterday' is no time"),
        ("gpus IN 3", "at character 9: expected a list in parentheses, found '3'"),
        ("gpus = " + "1" * 5900 + "a", "at character 8: '1' has no meaning here"),
        ("gpus = 1; DROP TABLE runs", "at character 9: ';' has no meaning here"),
    ],
)
def test_an_error_says_where(text: str, message: str) -> None:
    with pytest.raises(FilterError) as caught:
        RunQuery(text)
    assert message in str(caught.value)
    assert caught.value.field == "where"


def test_an_error_of_the_order_is_one_of_order_by() -> None:
    with pytest.raises(FilterError) as caught:
        RunQuery("", ["metrics.loss down"])
    assert (caught.value.field, "found 'down'" in str(caught.value)) == ("order_by", True)


WORDS = st.sampled_from(
    ["params", "metrics", ".", "lr", "loss", "=", "<", "in", "(", ")", ",", "'a'", "1", "and",
     "`x`", "name", "is", "not", "null", '"', "'", "--", "\0", "{w0:String}", "é", "%"]
)  # fmt: skip


@given(text=st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=12).map(" ".join)))
def test_any_text_is_a_filter_or_an_error(text: str) -> None:
    with contextlib.suppress(FilterError):
        assert read_filter(text) or not text.strip()


@given(text=st.text(alphabet=st.characters(exclude_characters="'`"), min_size=1, max_size=30))
def test_values_and_names_are_parameters(text: str) -> None:
    plain, odd = (
        RunQuery(f"params.`{word}` = '{word}' and metrics.`{word}` > 1") for word in ("x", text)
    )
    assert (odd.conditions, odd.join) == (plain.conditions, plain.join)
    assert text in odd.parameters.values()


@pytest.mark.parametrize(
    "cursor", ["", "x", "é", "W10", "WzEsMl0", "W251bGwsbnVsbF0", "W3RydWUsImEiXQ"]
)
def test_a_cursor_of_another_query_is_refused(cursor: str) -> None:
    with pytest.raises(CursorError):
        RunQuery().read(cursor)


@pytest.mark.parametrize(("at", "job"), [(1, "\ud800"), (10**400, "a"), (-(2**64), "a")])
def test_a_value_that_no_column_holds_is_no_cursor(at: int, job: str) -> None:
    with pytest.raises(CursorError):
        RunQuery().read(json_cursor([at, job]))


def test_smoothing_has_no_bias_to_zero() -> None:
    assert smoothed([3.0] * 4, 0.9) == pytest.approx([3.0] * 4)
    assert smoothed([0.0, 1.0], 0.5) == pytest.approx([0.0, 2 / 3])


def test_steps_between_two_counts_of_tokens() -> None:
    assert [between(at, [10, 20], [100.0, 300.0]) for at in (5, 10, 15, 25)] == [50, 100, 200, 300]
