"""The state that an agent's program hands to the next one in its process (docs/adr/0014).

It is JSON in a file that lies in memory alone: it holds the secrets of jobs, and the disk may be
full. Its numbers of descriptors stay open over the exec. New fields need defaults, so that a newer
program reads what an older one wrote; a change that is not readable increases FORMAT.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog
from pydantic import Base64Bytes, TypeAdapter, ValidationError

from gangline_bus.ports import TopicPartition
from gangline_service.lifecycle import Restart

from .decide.core_state import CoreState
from .executor import KeptEffects
from .host_resources import KeptHostResources
from .rendezvous.store_host import KeptStores
from .runtime.lease_guard import KeptGuard

log = structlog.get_logger(__name__)

FORMAT = 1
VARIABLE = "GANGLINE_AGENT_HANDOVER"


@dataclass(frozen=True, slots=True)
class Handover:
    """All of it. `positions`: up to where the logs of others were read; `unsaved`: see `Spool`."""

    format: int
    host_resources: KeptHostResources
    guard: KeptGuard
    stores: KeptStores
    core: CoreState
    effects: KeptEffects
    positions: tuple[tuple[TopicPartition, int], ...]
    unsaved: Base64Bytes = b""

    @property
    def is_complete(self) -> bool:
        """Whether just those ranks are left that the core knows to run."""
        known = {rank.key for gang in self.core.gangs for rank in gang.ranks.values() if rank.alive}
        return known == {rank.rank for rank in self.effects.ranks}

    def descriptors(self) -> Iterator[int]:
        """All that must stay open."""
        yield self.host_resources.lock
        if self.host_resources.claim is not None:
            yield self.host_resources.claim
        yield self.guard.stdin
        if self.stores.channel is not None:
            yield self.stores.channel
        for rank in self.effects.ranks:
            yield from (rank.stdout, rank.stderr)
        for listener in self.effects.listeners:
            yield listener.descriptor
            yield from (line.descriptor for line in listener.lines)


_CODEC = TypeAdapter(Handover)
_CORE = TypeAdapter(CoreState)


def sample(state: CoreState) -> int:
    """The descriptor of what another program can be tried with, by `refusal`. Raises OSError."""
    return _in_memory(_CORE.dump_json(state))


def refusal(given_format: int, given: bytes) -> str | None:
    """Why this program would not take over from one that gives this sample; None if it would."""
    if given_format != FORMAT:
        return f"it would leave a handover of format {given_format}, this reads {FORMAT}"
    try:
        _CORE.validate_json(given, extra="ignore")
    except ValidationError as error:
        return _places(error)
    return None


def leave(handover: Handover) -> Restart:
    """Write it down. Raises OSError."""
    descriptor = _in_memory(_CODEC.dump_json(handover))
    keep = frozenset({descriptor, *handover.descriptors()})
    return Restart(keep, {VARIABLE: str(descriptor)})


def take_over() -> Handover | None:
    """The state of this process's last program; None when this one is its first.

    If it cannot be read, all that was left is ended, as the death of the process would have done,
    and the agent begins as its first program. Call it once, before any child is started.
    """
    descriptor = os.environ.pop(VARIABLE, None)
    if descriptor is None:
        return None
    try:
        with os.fdopen(int(descriptor), "rb") as file:
            found = _CODEC.validate_json(file.read(), extra="ignore")
        if found.format == FORMAT and found.is_complete:
            return found
        reason = f"it has format {found.format}, not {FORMAT}, or not all ranks"
    except ValidationError as error:
        reason = _places(error)
    except (OSError, ValueError) as error:
        reason = str(error)
    log.error("agent.handover_unreadable", reason=reason)
    _end_all()
    return None


def _in_memory(content: bytes) -> int:
    descriptor = os.memfd_create("gangline-handover")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _places(error: ValidationError) -> str:
    """Where it is wrong. Its own text would show values, which are secrets."""
    places = [".".join(map(str, item["loc"])) for item in error.errors(include_input=False)]
    return f"not as expected: {', '.join(places[:5])}"


def _end_all() -> None:
    """Kill all children, and what they leave behind; close what was kept open."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split():
        for pid in map(int, children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 -- numbers
        with contextlib.suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                os.close(int(name))
