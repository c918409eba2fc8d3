"""pyarrow, which reads and writes Parquet, and the message where it is not installed."""

from __future__ import annotations

from typing import Any

from gangline.errors import CliError


def pyarrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet. Raises CliError."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise CliError(
            "Parquet needs the package pyarrow", "install it: pip install 'gangline[parquet]'"
        ) from None
    return pa, parquet
