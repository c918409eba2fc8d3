"""The names that an outside query may use: our tables, a few system tables, harmless functions."""

from __future__ import annotations

from importlib import resources

DATABASE = "gangline"

TEAM_TABLES = frozenset(
    {
        "steps",
        "logs",
        "runs",
        "usage",
        "incidents",
        "metric_points",
        "run_tags",
        "run_curves",
        "run_list",
        "incident_list",
        "lineage",
    }
)
"""Tables with a column `team` in every row."""
JOB_TABLES = frozenset({"checkpoints", "checkpoint_list"})
"""Tables whose `job_id` gives the team."""
NODE_TABLES = frozenset({"heartbeats", "node_samples"})
"""Tables about nodes; `jobs` are those that ran there."""
TABLES = TEAM_TABLES | JOB_TABLES | NODE_TABLES | {"events"}

SYSTEM_TABLES = {
    "one": "",
    "settings": "",
    "databases": f"name = '{DATABASE}'",
    "tables": f"database = '{DATABASE}'",
    "columns": f"database = '{DATABASE}'",
}
"""System tables that clients read at their start; the condition selects their rows ("": all)."""

_COMBINATORS = ("", "if", "array", "ornull", "ordefault", "map", "distinct", "ifornull")


def _words() -> dict[str, frozenset[str]]:
    text = resources.files("gangline_tracker").joinpath("sql_words.txt").read_text("utf-8")
    found: dict[str, set[str]] = {}
    section: set[str] = set()
    for line in text.splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), set())
        elif not line.startswith("#"):
            section.update(line.split())
    return {name: frozenset(words) for name, words in found.items()}


_WORDS = _words()
FORMATS = _WORDS["formats"]
"""Output formats; each is text or bytes that carry no program."""
KEYWORDS = _WORDS["keywords"]
"""Words that may stand before a parenthesis without being a call."""
TYPES = _WORDS["types"]
"""Types with parameters, in lower case."""
FUNCTIONS = _WORDS["functions"] | {a + c for a in _WORDS["aggregates"] for c in _COMBINATORS}
"""Functions in lower case. None reads a file, a URL, a dictionary or another table, or waits."""
