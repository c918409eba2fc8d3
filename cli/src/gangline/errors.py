"""Errors of the command line for its user, each with its exit code."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    TOOL_ERROR = 1
    USAGE = 2
    JOB_FAILED = 100
    NOT_FINISHED = 101
    NOT_FOUND = 102
    CANCELLED = 103


class CliError(Exception):
    """One line of what is wrong and, in `hint`, the way out."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        code: ExitCode = ExitCode.TOOL_ERROR,
        *,
        status: int = 0,
    ) -> None:
        """`status`: of the gateway's answer, if one was refused."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.status = status
        if hint:
            self.add_note(hint)  # for a traceback of a script
