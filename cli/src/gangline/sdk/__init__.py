"""The Python SDK: one method per thing that a user asks of the platform.

Every method raises CliError (`message`, `hint`, `code`) when the platform refuses or is away.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gangline.connection import find_gateway
from gangline.sdk.access import Access
from gangline.sdk.alerts import Alerts
from gangline.sdk.cluster import Cluster
from gangline.sdk.health import Health
from gangline.sdk.models import Models
from gangline.sdk.pipelines import Pipelines
from gangline.sdk.results import Results
from gangline.sdk.runs import Runs
from gangline.sdk.studies import Studies
from gangline.sdk.uploads import Uploads

__all__ = ["Gangline", "connect"]


def connect(
    url: str | None = None,
    token: str | None = None,
    data_dir: Path | str | None = None,
    *,
    notice: Callable[[str], None] = lambda _: None,
) -> Gangline:
    """A client of the platform at `url`, or of the one that was last up on this machine.

    The defaults are GANGLINE_URL and GANGLINE_TOKEN, then those of `gangline login`, then those of
    the platform of the data directory. GANGLINE_CA_FILE names the gateway's authority.
    `notice` is called with one line for each retry. Raises CliError when no platform is known.
    """
    folder = Path(data_dir) if data_dir is not None else None
    return Gangline(find_gateway(url, token, folder, notice=notice))


class Gangline(Studies, Results, Runs, Uploads, Alerts, Cluster, Health, Pipelines, Models, Access):
    """A client of one gateway. Use it as a context manager, or call `close`."""
