"""The environment variables that a job or an operator may give to ranks."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from gangline_schemas.secrets import is_secret_name

ENV_LIMIT_BYTES = 64 * 1024
RESERVED_ENV = frozenset(
    [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "CUDA_VISIBLE_DEVICES",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
    ]
)
ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
EnvValue = Annotated[str, Field(json_schema_extra={"maxLength": ENV_LIMIT_BYTES})]
"""Of all together so much is taken, and the error says by how much they are too large."""


def refuse_unsafe_env(env: dict[str, str]) -> dict[str, str]:
    """The variables, if a job or an operator may give them to ranks.

    Raises ValueError for a bad name, one that Gangline sets, one that looks like a secret, and for
    more than `ENV_LIMIT_BYTES`.
    """
    for name in env:
        if not ENV_NAME.match(name):
            raise ValueError("names must be letters, digits and '_', not starting with a digit")
        if name.upper() in RESERVED_ENV or name.upper().startswith("GANGLINE_"):
            raise ValueError(f"{name} is set by Gangline and cannot be given here")
        if is_secret_name(name):
            raise ValueError(f"{name} looks like a secret; list its name under 'secrets'")
    size = sum(len(name.encode()) + len(value.encode()) for name, value in env.items())
    if size > ENV_LIMIT_BYTES:
        raise ValueError(
            f"holds {size:,} bytes; at most {ENV_LIMIT_BYTES:,} (put data into the workdir)"
        )
    return env
