"""`python -m gangline_pipelines`: the pipelines service."""

from __future__ import annotations

from gangline_pipelines.core.decide import PipelineDecider
from gangline_pipelines.core.snapshot import codec
from gangline_pipelines.service.config import PipelineSettings
from gangline_pipelines.service.executor import OutputChecker, share_of
from gangline_service.deciding import run_decider
from gangline_service.settings import cannot_start
from gangline_storage import StoreError, open_store


def main() -> None:
    """Read the settings and open the store, then decide until a signal stops the process."""
    settings = PipelineSettings.load()
    try:
        store = open_store(settings.store_url)
    except StoreError as error:
        cannot_start("GANGLINE_STORE_URL", error)
    run_decider(
        "pipelines",
        settings,
        PipelineDecider(),
        codec(),
        executor=OutputChecker(store, read_bytes=int(settings.outputs_read_gb * 1e9)),
        share=share_of,
    )


if __name__ == "__main__":
    main()
