"""docs/reference/rest.md shows every route of the gateway, each with an example."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

from gangline_gateway import openapi
from gangline_gateway.app import routes
from support.builders.rest_document import rest_document

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "rest.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (\S+ \S+)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))


def test_every_route_has_a_section_with_an_example() -> None:
    served = {
        f"{method.upper()} {path}"
        for path, operations in rest_document()["paths"].items()
        for method in operations
    }
    assert set(SECTIONS) == served
    for title, section in SECTIONS.items():
        assert re.search(r"^```sh\n.*\bapi\b", section, re.MULTILINE | re.DOTALL), title
        fixed = title.split()[1].split("{")[0]
        assert f"$URL{fixed}" in section, title


def test_the_document_is_made_without_warnings() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        document = openapi.document(routes())
    assert [str(warning.message) for warning in said] == []
    assert document["paths"]


def test_the_document_names_fields_as_answers_do_and_has_all_that_it_refers_to() -> None:
    schemas = rest_document()["components"]["schemas"]
    names = {name for schema in schemas.values() for name in schema.get("properties", {})}
    assert len(names) > 300
    assert [name for name in names if name != name.lower()] == []
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(rest_document())))
    assert referred <= schemas.keys()
    assert all({*one.get("required", ())} <= {*one["properties"]} for one in schemas.values()
               if "properties" in one)  # fmt: skip


def test_every_code_of_a_problem_is_explained() -> None:
    folder = Path(openapi.__file__).parent
    sources = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    made = re.findall(r'(?:ProblemError\(\s*\d+,|conflict\(|unavailable\()\s*"([a-z-]+)"', sources)
    assert len(made) > 15
    assert sorted({code for code in made if not re.search(rf"\b{code}\b", TEXT)}) == []
