"""The pages, in the order of the navigation.

To add one: make a folder with a `PAGE`, import it here, and put it into `PAGES`.
"""

from __future__ import annotations

from gangline_console.page import Page
from gangline_console.pages import (
    alerts,
    compare,
    components,
    docs,
    health,
    incidents,
    job,
    jobs,
    models,
    nodes,
    overview,
    pipelines,
    queue,
    runs,
    search,
    studies,
    study,
    submit,
    teams,
    time,
)

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    jobs.PAGE,
    job.PAGE,
    queue.PAGE,
    submit.PAGE,
    runs.PAGE,
    compare.PAGE,
    studies.PAGE,
    pipelines.PAGE,
    models.PAGE,
    study.PAGE,
    nodes.PAGE,
    teams.PAGE,
    incidents.PAGE,
    time.PAGE,
    alerts.PAGE,
    health.PAGE,
    search.PAGE,
    docs.PAGE,
    components.PAGE,
)
