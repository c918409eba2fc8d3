"""`python -m gangline_studies`: the studies service."""

from __future__ import annotations

from gangline_service.deciding import run_decider
from gangline_studies.core.decide import StudyDecider
from gangline_studies.core.snapshot import codec
from gangline_studies.service.config import StudySettings
from gangline_studies.service.sampler import Sampler, share_of


def main() -> None:
    """Read the settings, then decide until a signal stops the process."""
    settings = StudySettings.load()
    run_decider("studies", settings, StudyDecider(), codec(), executor=Sampler(), share=share_of)


if __name__ == "__main__":
    main()
