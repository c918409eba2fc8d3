"""What one program of an agent leaves to the next one in its process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent

from pydantic import TypeAdapter

from gangline_schemas.events.logs import LogLine
from gangline_schemas.rank_protocol import Control, Hello, Report
from gangline_worker.agent.decide import announce
from gangline_worker.agent.decide.core import AgentCore
from gangline_worker.agent.decide.inputs import Prepared, RankMessage
from gangline_worker.agent.decide.keys import GangKey, Moment, RankKey
from gangline_worker.agent.decide.membership import AgentLimits
from gangline_worker.agent.handover import FORMAT, refusal, sample
from gangline_worker.agent.inbox import Inbox
from gangline_worker.agent.runtime.log_lines import KeptLog, LogBatcher
from gangline_worker.agent.runtime.rank_socket import KeptListener, RankServer
from support.builders.gangs import node_info

GANG = GangKey("job", 1)
RANK = RankKey(GANG, 0)
REPORT = Report(step=(1,), time_ms=(1,), metrics={"loss": (0.5,)})
WAIT_S = 10.0


class Lines:
    """What a log published."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logs = LogBatcher(frozenset({"secret"}), self._publish, lambda: 0)

    def _publish(self, first: int, lines: tuple[LogLine, ...]) -> None:
        self.texts += [f"{first + at} {line.text}" for at, line in enumerate(lines)]


def test_a_log_goes_on_within_a_line_and_a_secret():
    before, after = Lines(), Lines()
    before.logs.feed("stderr", b"one\ntwo and a sec")
    before.logs.feed("stdout", b"\xc3")
    before.logs.flush()
    codec = TypeAdapter(KeptLog)

    after.logs.adopt(codec.validate_json(codec.dump_json(before.logs.kept())))
    after.logs.feed("stderr", b"ret\n")
    after.logs.feed("stdout", b"\xa9\n")
    after.logs.flush()

    assert before.texts == ["0 one"]
    assert after.texts == ["1 two and a [redacted]", "2 \u00e9"]
    assert after.logs.last_words == "one\ntwo and a [redacted]"


class Server:
    """Takes every process for rank 0."""

    def __init__(self) -> None:
        self.got: list[RankMessage] = []
        self._changed = threading.Condition()
        self.server = RankServer(lambda _, rank: rank.rank == 0, self._receive, print)

    def _receive(self, message: RankMessage) -> None:
        with self._changed:
            self.got.append(message)
            self._changed.notify_all()

    def wait(self, count: int) -> list[RankMessage]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, WAIT_S)
            return self.got


def as_if_after_exec(kept: KeptListener) -> KeptListener:
    """With descriptors of its own: here the one that left them continues, and will close its."""
    lines = tuple(replace(line, descriptor=os.dup(line.descriptor)) for line in kept.lines)
    return replace(kept, descriptor=os.dup(kept.descriptor), lines=lines)


def test_a_rank_is_heard_on_within_a_frame_and_others_may_still_come(tmp_path: Path):
    before, after = Server(), Server()
    before.server.open(GANG, tmp_path / "s", {0: "token"})
    frame = REPORT.encode() + b"\n"
    hello = Hello(rank=0, token="token").encode() + b"\n"
    with socket.socket(socket.AF_UNIX) as rank, socket.socket(socket.AF_UNIX) as late:
        rank.settimeout(WAIT_S)
        rank.connect(str(tmp_path / "s"))
        rank.sendall(hello + frame + frame[:9])
        before.wait(2)
        before.server.pause()
        before.server.send(RANK, Control(stop="drain"))
        codec = TypeAdapter(tuple[KeptListener, ...])
        (kept,) = codec.validate_json(codec.dump_json(before.server.kept()))

        after.server.adopt(as_if_after_exec(kept))
        rank.sendall(frame[9:])
        assert after.wait(1) == [RankMessage(RANK, REPORT, os.getpid())]
        assert Control.decode(rank.makefile("rb").readline()).stop == "drain"
        late.connect(str(tmp_path / "s"))
        late.sendall(hello)
        after.wait(2)
    after.server.drain(RANK, WAIT_S)
    after.server.close(GANG)
    before.server.close(GANG)


def test_what_must_live_as_long_as_the_agent_is_begun_by_the_thread_that_takes():
    inbox = Inbox()
    found: list[object] = []

    def ask() -> None:
        found.append(inbox.call(threading.get_ident))
        try:
            inbox.call(lambda: 1 // 0)
        except ZeroDivisionError as error:
            found.append(type(error))
        inbox.put(Prepared(GANG))

    asking = threading.Thread(target=ask)
    asking.start()
    taken: list[object] = []
    while not taken:
        taken += inbox.take(WAIT_S)
    asking.join()
    assert taken == [Prepared(GANG)]
    assert found == [threading.get_ident(), ZeroDivisionError]


def test_nobody_waits_for_room_once_the_inbox_is_to_be_emptied():
    inbox = Inbox()
    for _ in range(10_000):
        inbox.put(Prepared(GANG))
    waiting = threading.Thread(target=inbox.put_when_room, args=(Prepared(GANG),))
    waiting.start()
    inbox.make_room()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    assert len(inbox.take(0.0)) == 10_001


def test_a_handover_that_cannot_be_read_ends_all_that_was_left():
    program = """
        import os, subprocess, sys
        from gangline_worker.agent.handover import VARIABLE, take_over
        from gangline_worker.agent.runtime.launcher import become_subreaper

        assert take_over() is None  # a first program: nothing was left
        become_subreaper()
        shell = "sleep 600 & sleep 600 & echo $!; kill -9 $$"
        lost = subprocess.Popen(["sh", "-c", shell], stdout=subprocess.PIPE)
        orphan = int(lost.stdout.readline())
        ours = subprocess.Popen(["sleep", "600"])
        kept = os.memfd_create("kept", 0)
        os.write(kept, b'{"format": 1, "host_resources": "s3cret"}')
        other = os.open("/dev/null", os.O_RDONLY)
        os.set_inheritable(other, True)
        os.environ[VARIABLE] = str(kept)
        assert take_over() is None
        for pid in (orphan, ours.pid, lost.pid):
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                continue
            raise AssertionError(f"{pid} runs")
        assert str(other) not in os.listdir("/proc/self/fd")
        assert VARIABLE not in os.environ
    """
    found = subprocess.run(
        [sys.executable, "-c", dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"]},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "handover_unreadable" in found.stdout
    assert "s3cret" not in found.stdout + found.stderr


def test_a_program_that_does_not_understand_the_state_would_not_take_over():
    core = AgentCore(node_info(), AgentLimits())
    core.start(Moment(1.0, datetime(2026, 11, 1, tzinfo=UTC)))
    with os.fdopen(sample(core.state), "rb") as file:
        given = file.read()

    assert refusal(FORMAT, given) is None
    newer = given.replace(b'"joined":', b'"a field that this program does not know":1,"joined":')
    assert refusal(FORMAT, newer) is None
    other = given.replace(b'"incarnation":', b'"life":')
    assert refusal(FORMAT, other) == "not as expected: standing.node.incarnation"
    assert "format" in str(refusal(FORMAT + 1, given))


def test_an_agent_that_reloads_announces_another_release_once():
    node = node_info(release="0.1.0")
    at = Moment(0.0, datetime(2026, 11, 21, tzinfo=UTC))
    old = AgentCore(node, AgentLimits())
    old.start(at)
    newer = node.model_copy(update={"release": "0.2.0"})
    new = AgentCore(newer, AgentLimits())
    assert new.adopt(old.state) == [announce.joined(newer)]
    assert announce.joined(newer).identity != announce.joined(node).identity
    again = AgentCore(newer, AgentLimits())
    assert again.adopt(new.state) == []
