"""`python -m gangline_registry`: the registry of models."""

from __future__ import annotations

from gangline_registry.core.decide import RegistryDecider
from gangline_registry.core.snapshot import codec
from gangline_registry.service.config import RegistrySettings
from gangline_registry.service.executor import Executor, share_of
from gangline_registry.service.mlflow import MlflowRegistry
from gangline_service.deciding import run_decider
from gangline_service.settings import cannot_start
from gangline_storage import StoreError, open_store


def main() -> None:
    """Read the settings, then decide until a signal stops the process."""
    settings = RegistrySettings.load()
    try:
        store = None if settings.store_url is None else open_store(settings.store_url)
    except StoreError as error:
        cannot_start("GANGLINE_STORE_URL", error)
    token = "" if settings.service_token is None else settings.service_token.get_secret_value()
    executor = Executor(MlflowRegistry(settings.mlflow_url, token), store)
    run_decider("registry", settings, RegistryDecider(), codec(), executor=executor, share=share_of)


if __name__ == "__main__":
    main()
