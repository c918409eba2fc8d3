"""Which commands and variables of a rank can start warm."""

from __future__ import annotations

import pytest

from gangline_worker.agent.host.forked import Forked
from gangline_worker.agent.warm.fresh import cold_variable
from gangline_worker.agent.warm.process import warm_arguments


def test_no_rank_is_the_group_of_the_agent_itself() -> None:
    with pytest.raises(ValueError, match="0 is no process"):
        Forked(0)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (("python", "-m", "a.b", "-m"), ("-m", "a.b", "-m")),
        (("python3", "train.py", "1"), ("train.py", "1")),
        (("python", "-c", "pass"), None),
        (("python", "-u", "train.py"), None),
        (("python", "-m"), None),
        (("python",), None),
        (("sh", "train.py"), None),
        (("/usr/bin/python3", "train.py"), None),
    ],
)
def test_which_commands_can_be_warm(
    command: tuple[str, ...], arguments: tuple[str, ...] | None
) -> None:
    assert warm_arguments(command) == arguments


def test_a_variable_that_the_interpreter_was_started_with_needs_no_fresh_one() -> None:
    wanted = {
        "LD_LIBRARY_PATH": "/drivers", "OMP_NUM_THREADS": "4", "COLOUR": "green",
        "TORCHINDUCTOR_CACHE_DIR": "/cache",
    }  # fmt: skip
    assert cold_variable(wanted, {"LD_LIBRARY_PATH": "/drivers"}) is None
    assert cold_variable(wanted, {"LD_LIBRARY_PATH": "/others"}) == "LD_LIBRARY_PATH"
    assert cold_variable(wanted, {}) == "LD_LIBRARY_PATH"
