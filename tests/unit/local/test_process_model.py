"""Which process lists are refused, and how the back-off grows."""

import pytest

from gangline.local.process_model import (
    BackOff,
    Patience,
    ProcessSpec,
    SupervisorError,
    check_specs,
)


def spec(name: str, *depends_on: str) -> ProcessSpec:
    return ProcessSpec(name, ["true"], depends_on=depends_on)


def test_specs_in_any_order_of_dependency_are_accepted() -> None:
    check_specs(["kafka"], [spec("gateway", "quota"), spec("quota", "kafka")])


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([spec("a"), spec("a")], "process a: the name is taken"),
        ([spec("kafka")], "process kafka: the name is taken"),
        ([spec("a", "b")], "process a: depends_on has unknown b"),
        ([spec("a", "b"), spec("b", "a")], "process a: depends_on has a cycle"),
        ([spec("a", "a")], "process a: depends_on has a cycle"),
        ([spec("../a")], "use letters, digits"),
        ([ProcessSpec("a", [])], "process a: argv is empty"),
    ],
)
def test_a_wrong_list_is_refused_by_name(specs: list[ProcessSpec], message: str) -> None:
    with pytest.raises(SupervisorError, match=message):
        check_specs(["kafka"], specs)


def test_back_off_doubles_up_to_its_bound() -> None:
    back_off = BackOff(first_s=0.1, most_s=5.0)
    assert [back_off.delay_s(n) for n in (1, 2, 3, 7, 10_000)] == [0.1, 0.2, 0.4, 5.0, 5.0]


def test_back_off_begins_anew_after_a_long_life() -> None:
    back_off = BackOff(reset_after_s=10.0)
    assert back_off.crashes_in_row(4, lived_s=9.9) == 5
    assert back_off.crashes_in_row(4, lived_s=10.0) == 1


def test_processes_have_time_from_the_last_that_became_ready() -> None:
    patience = Patience(90)
    assert patience.left_s(3, 100) == 90
    assert patience.left_s(3, 150) == 40
    assert patience.left_s(2, 180) == 90
    assert patience.left_s(3, 200) == 70, "one that is not ready again gives no more time"
    assert patience.left_s(2, 260) == 10
    assert patience.left_s(1, 265) == 90
