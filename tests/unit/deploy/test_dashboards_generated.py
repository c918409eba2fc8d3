"""The committed dashboards are what the generator makes, and Grafana can use them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.grafana import CLICKHOUSE, FOLDER, PROMETHEUS, boards

PROMTOOL = shutil.which("promtool")
WHOLE = {"cluster", "job", "checkpoints", "control-plane", "teams", "tracking"}
BOARDS = boards()


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, board in BOARDS.items():
        for panel in board["panels"]:
            if panel["type"] != "row":
                yield f"{name}: {panel['title']}", panel


PANELS = dict(panels())


def expressions() -> dict[str, str]:
    """PromQL by panel and query; Grafana's own variables are filled in."""
    return {
        f"{title} {target['refId']}": target["expr"].replace("$__rate_interval", "5m")
        for title, panel in PANELS.items()
        if panel["datasource"]["type"] == PROMETHEUS
        for target in panel["targets"]
    }


def test_the_files_are_generated(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(FOLDER / "generate.py"), str(tmp_path)], check=True)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    kept = {
        path.name: path.read_text(encoding="utf-8") for path in (FOLDER / "dashboards").iterdir()
    }
    assert set(made) == set(kept) == {f"{name}.json" for name in WHOLE}
    for name, text in made.items():
        assert text == kept[name], f"{name}: run python deploy/grafana/generate.py"


def test_panels_use_the_provisioned_data_sources() -> None:
    text = (FOLDER / "provisioning" / "datasources" / "gangline.yaml").read_text()
    provisioned = {(one["uid"], one["type"]) for one in yaml.safe_load(text)["datasources"]}
    used = {
        (source["uid"], source["type"])
        for panel in PANELS.values()
        for source in (panel["datasource"], *(t.get("datasource", {}) for t in panel["targets"]))
        if source
    }
    assert used == provisioned
    assert {kind for _, kind in used} == {CLICKHOUSE, PROMETHEUS}


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_panels_have_places_and_names_of_their_own(name: str) -> None:
    board = BOARDS[name]
    cells = Counter(
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    )
    assert max(cells.values()) == 1, "panels overlap"
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    titles = [panel["title"] for panel in board["panels"] if panel["type"] != "row"]
    assert len(titles) == len(set(titles))
    assert board["uid"] == f"gangline-{name}"
    assert board["links"][0]["tags"] == board["tags"] == ["gangline"]


def test_each_panel_says_what_it_shows() -> None:
    for title, panel in PANELS.items():
        assert panel["description"].endswith("."), title


def test_variables_of_queries_and_of_links_are_there() -> None:
    by_uid = {board["uid"]: board for board in BOARDS.values()}

    def variables(board: dict[str, Any]) -> set[str]:
        return {one["name"] for one in board["templating"]["list"]}

    for title, panel in PANELS.items():
        board = BOARDS[title.partition(":")[0]]
        for target in panel["targets"]:
            used = set(re.findall(r"\$\{(\w+):", target.get("rawSql", "")))
            assert used <= variables(board), title
        for url in re.findall(r"'url': '/d/([^']*)'", str(panel.get("fieldConfig"))):
            uid, _, query = url.partition("?")
            assert set(re.findall(r"var-(\w+)=", query)) <= variables(by_uid[uid])


@pytest.mark.skipif(PROMTOOL is None, reason="promtool of Debian's package prometheus")
def test_promtool_reads_each_expression(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(expressions().values())
    ]
    assert len(rules) > 15
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    example = FOLDER.parent / "prometheus" / "prometheus.yaml"
    for arguments in (["check", "rules", str(path)], ["check", "config", str(example)]):
        done = subprocess.run(
            [str(PROMTOOL), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
