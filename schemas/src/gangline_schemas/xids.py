"""Errors that NVIDIA's driver reports by number (Xid) and that need no repair of the GPU."""

from __future__ import annotations

PROGRAM_XIDS = frozenset({8, 13, 31, 32, 43, 45, 68, 69})
"""NVIDIA's catalog: the program or its channel is at fault, and starting it again is enough."""
CONTAINED_XIDS = frozenset({94})
"""An ECC error that hit one program alone: the GPU can be used until its next reset."""
