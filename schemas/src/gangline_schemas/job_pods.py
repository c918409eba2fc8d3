"""The names and numbers of a job's pod that the agent and the maker of pods both derive."""

from __future__ import annotations

import hashlib


def pod_folder(job_id: str) -> str:
    """The folder that a job's pod shares with the agent of its node, among the agent's sockets.

    It is short, because the path of a socket has at most 107 bytes.
    """
    return f"j-{hashlib.sha256(job_id.encode()).hexdigest()[:12]}"


def team_user(team: str, uids: range) -> int:
    """The number of a team's user on every node, unless two teams of a node have the same."""
    start = int.from_bytes(hashlib.sha256(team.encode()).digest()[:8], "big")
    return uids[start % len(uids)]
