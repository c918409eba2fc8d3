"""The names and numbers of a job's pod that the agent and the maker of pods both derive."""

from __future__ import annotations

import hashlib
import re

POD_SOCKET = "pod.sock"
"""The socket of a job's pod, in the folder `pod_folder`."""


def pod_folder(job_id: str) -> str:
    """The folder that a job's pod shares with the agent of its node, among the agent's sockets.

    It is short, because the path of a socket has at most 107 bytes.
    """
    return f"j-{hashlib.sha256(job_id.encode()).hexdigest()[:12]}"


def pod_domain(job_id: str) -> str:
    """The part of the names of a job's pods that they have in common."""
    return f"g-{hashlib.sha256(job_id.encode()).hexdigest()[:12]}"


def pod_host(node_id: str) -> str:
    """The name of a job's pod on this node, below `pod_domain`."""
    return f"n-{hashlib.sha256(node_id.encode()).hexdigest()[:8]}"


def team_user(team: str, uids: range) -> int:
    """The number of a team's user on every node, unless two teams of a node have the same."""
    start = int.from_bytes(hashlib.sha256(team.encode()).digest()[:8], "big")
    return uids[start % len(uids)]


def user_range(text: str) -> range:
    """The user numbers of a setting FIRST-LAST. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,10})-(\d{1,10})", text)
    if found is None or not 1000 <= int(found[1]) < int(found[2]) < 2**31:
        raise ValueError("must be FIRST-LAST, for example 1900000000-1900999999")
    return range(int(found[1]), int(found[2]) + 1)
