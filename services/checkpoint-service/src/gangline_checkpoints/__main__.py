"""`python -m gangline_checkpoints`: the checkpoint service."""

from __future__ import annotations

import threading
from functools import partial

from gangline_bus.ports import Bus
from gangline_checkpoints.core.decide import CheckpointDecider
from gangline_checkpoints.core.snapshot import codec
from gangline_checkpoints.service.config import CheckpointSettings
from gangline_checkpoints.service.executor import StoreExecutor, share_of
from gangline_checkpoints.service.sweeping import keep_sweeping
from gangline_service.deciding import run_decider
from gangline_service.lifecycle import Context
from gangline_service.settings import ServiceSettings, cannot_start
from gangline_storage import StoreError, open_store
from gangline_storage.pace import Pace


def main() -> None:
    """Read the settings and open the store, then decide until a signal stops the process."""
    settings = CheckpointSettings.load()
    partial_s = settings.partial_uploads_days * 86400
    try:
        store = open_store(settings.store_url)
    except StoreError as error:
        cannot_start("GANGLINE_STORE_URL", error)

    def on_start(_bus: Bus, context: Context[ServiceSettings]) -> None:
        if partial_s:
            wait = context.stopping.wait
            sweeping = partial(keep_sweeping, store, older_than_s=partial_s, wait=wait)
            threading.Thread(target=sweeping, name="sweep", daemon=True).start()

    run_decider(
        "checkpoint-service",
        settings,
        CheckpointDecider(scrubbing=settings.scrubbing()),
        codec(),
        executor=StoreExecutor(
            store,
            pace=Pace(settings.scrub_mb_per_s * 1e6),
            files_at_once=settings.verify_files_at_once,
        ),
        share=share_of,
        on_start=on_start,
    )


if __name__ == "__main__":
    main()
