"""The volumes that an administrator gives to the pods of a team. Jobs cannot name any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

from gangline_kube.core.resource import KubeName, Object
from gangline_schemas.base import Model

_OURS = ("/dev", "/gangline", "/proc", "/sys")
"""Folders of the pod that its first process, or every Linux program, needs."""
_PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*)+")


def _folder_path(value: str) -> str:
    if not _PATH.fullmatch(value):
        raise ValueError(
            "must be an absolute path of letters, digits, '.', '_' and '-', such as /data/corpus"
        )
    return value


FolderPath = Annotated[str, StringConstraints(max_length=1024), AfterValidator(_folder_path)]


class Claim(Model):
    """A PersistentVolumeClaim of the pods' namespace, and where pods of a team have it."""

    claim: KubeName
    mount_path: FolderPath
    read_only: bool = True


def refuse_clashes(claims: Sequence[Claim], data: str) -> None:
    """Raises ValueError if the paths of a team's claims meet each other's, or folders in use.

    `data`: the data folder of agents, parts of which pods have under the same paths.
    """
    for one in claims:
        for taken in (*_OURS, data):
            if _meet(one.mount_path, taken):
                raise ValueError(f"{one.claim}: its path meets {taken}, which pods need")
    for one, other in combinations(claims, 2):
        if one.claim == other.claim:
            raise ValueError(f"{one.claim} is named twice")
        if _meet(one.mount_path, other.mount_path):
            raise ValueError(f"the paths of {one.claim} and {other.claim} meet")


def _meet(one: str, other: str) -> bool:
    """Whether a folder is the other, or lies in it."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def claim_volumes(claims: Iterable[Claim]) -> tuple[list[Object], list[Object]]:
    """The volumes of a pod with these claims, and their mounts."""
    volumes: list[Object] = []
    mounts: list[Object] = []
    for number, each in enumerate(claims):
        name = f"claim-{number}"
        source = {"claimName": each.claim, "readOnly": each.read_only}
        volumes.append({"name": name, "persistentVolumeClaim": source})
        mounts.append({"name": name, "mountPath": each.mount_path, "readOnly": each.read_only})
    return volumes, mounts
