"""The pages, in the order of the navigation.

To add one: make a folder with a `PAGE`, import it here, and put it into `PAGES`.
"""

from __future__ import annotations

from gangline_console.page import Page
from gangline_console.pages import compare, components, job, jobs, runs, search

PAGES: tuple[Page, ...] = (
    jobs.PAGE,
    job.PAGE,
    runs.PAGE,
    compare.PAGE,
    search.PAGE,
    components.PAGE,
)
