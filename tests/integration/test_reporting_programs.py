"""Programs that report and receive by the names of `gangline_worker`, each a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline_schemas.job import TrialRef
from gangline_schemas.rank_protocol import Doing, Hello, Report, TrialPoint
from support.fakes.agent_end import AgentEnd


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentEnd]:
    end = AgentEnd(tmp_path)
    yield end
    end.hang_up()


def reports(said: object) -> list[Report]:
    assert isinstance(said, list)
    return [message for message in said if isinstance(message, Report)]


def test_after_a_with_a_rank_does_what_it_did_before(agent: AgentEnd) -> None:
    code = (
        "from gangline_worker import doing, flush\n"
        "doing('training')\n"
        "with doing('evaluating'): pass\n"
        "try: doing('sleeping')\n"
        "except ValueError: assert flush()"
    )
    env = {"GANGLINE_AGENT_SOCKET": agent.path, "GANGLINE_RANK_TOKEN": "t", "RANK": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    said = agent.wait_for(lambda said: len(said) == 4)
    assert [one.activity.value for one in said if isinstance(one, Doing)] == [
        "training",
        "evaluating",
        "training",
    ]


def test_the_last_report_of_a_program_that_ends_at_once_arrives(agent: AgentEnd) -> None:
    code = "from gangline_worker import report; report({'score': 2.0}, 1)"
    trial = TrialRef(study_id="s", number=0, metrics=("score",)).encode().decode()
    env = {"GANGLINE_AGENT_SOCKET": agent.path, "GANGLINE_RANK_TOKEN": "t", "RANK": "0",
           "GANGLINE_TRIAL": trial}  # fmt: skip
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    said = agent.wait_for(lambda said: len(said) == 3)
    assert [one.values for one in said if isinstance(one, TrialPoint)] == [{"score": 2.0}]
    [only] = reports(said)
    assert only.metrics["score"] == (2.0,)


def test_the_agent_side_imports_no_torch() -> None:
    code = (
        "import sys, gangline_worker\n"
        "from gangline_worker import report, should_stop\n"
        "report({'loss': 1.0}, 1); assert should_stop() is None\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PATH": ""})


def test_a_forked_child_does_not_speak_on_the_ranks_line(agent: AgentEnd) -> None:
    code = (
        "import os\n"
        "from gangline_worker import report, flush\n"
        "report({'loss': 1.0}, 1); assert flush()\n"
        "child = os.fork()\n"
        "report({'loss': 2.0}, 2); assert flush()\n"
        "if child == 0: os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0"
    )
    env = {"GANGLINE_AGENT_SOCKET": agent.path, "GANGLINE_RANK_TOKEN": "t", "RANK": "5"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env=env)
    said = agent.wait_for(lambda said: len(reports(said)) == 2)
    assert [message.step for message in reports(said)] == [(1,), (2,)]
    assert [message for message in said if isinstance(message, Hello)] == [Hello(rank=5, token="t")]


FORKS = """
should_stop()
child = os.fork()
if child == 0:
    kill()
    os._exit(0)
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 15
"""
HANDLES = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
should_stop()
kill()
"""
THREADS = """
import threading
thread = threading.Thread(target=should_stop)
thread.start()
thread.join()
should_stop()
kill()
assert should_stop() == 'sigterm'
"""


PROGRAMS = {
    "never asked": ("kill()", -15),
    "asked": ("should_stop(); kill(); assert should_stop() == 'sigterm'", 0),
    "a child of one that asked": (FORKS, 0),
    "its own handler": (HANDLES, 9),
    "threads": (THREADS, 0),
}
EACH_IN_A_CHILD = """
import json, os, signal, sys
from gangline_worker import should_stop
def kill(): os.kill(os.getpid(), signal.SIGTERM)
ends = []
for program in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        exec(program)
        os._exit(0)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(ends))
"""


def test_sigterm_is_a_reason_to_stop_for_a_program_that_asks() -> None:
    scripts = [script for script, _ in PROGRAMS.values()]
    command = [sys.executable, "-c", EACH_IN_A_CHILD, *scripts]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    ends = dict(zip(PROGRAMS, json.loads(done.stdout), strict=True))
    assert ends == {name: code for name, (_, code) in PROGRAMS.items()}, done.stderr
