"""All components, for those who build pages."""

from __future__ import annotations

from datetime import timedelta

from starlette.responses import Response

from gangline_console.page import Page, View


async def _show(view: View) -> Response:
    ages = [timedelta(seconds=value) for value in (1, 40, 3 * 3600, 40 * 86400, -5400)]
    return view.render("components/page.html", moments=[view.now - age for age in ages])


PAGE = Page("components", "Components", get={"/components": _show}, timeless=True)
