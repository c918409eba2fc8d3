"""The OpenAPI document: FastAPI's, with problem documents and snake_case names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic.json_schema import models_json_schema

from gangline_gateway.problems import MEDIA_TYPE
from gangline_gateway.route_rules import rule_of
from gangline_schemas.api.problem import Problem
from gangline_schemas.base import Model

_REF = "#/components/schemas/{model}"
_SCHEME = {"type": "http", "scheme": "bearer", "description": "A token of this installation."}


def document(app: FastAPI) -> dict[str, Any]:
    """The document, made once."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            separate_input_output_schemas=False,
            tags=app.openapi_tags,
        )
        _name_fields_in_snake_case(found)
        _describe_problems(found)
        found["components"]["securitySchemes"] = {"token": _SCHEME}
        _name_scopes(found)
        app.openapi_schema = found
    return app.openapi_schema


def _name_scopes(found: dict[str, Any]) -> None:
    """The scope that each route needs of a personal access token."""
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            operation["security"] = [{"token": [rule_of(method.upper(), path).scope.value]}]


def _name_fields_in_snake_case(found: dict[str, Any]) -> None:
    """FastAPI shows the aliases (camelCase), which are accepted too; answers use the names."""
    names = {to_camel(name): name for model in _models_below(Model) for name in model.model_fields}
    for schema in found["components"]["schemas"].values():
        properties = schema.get("properties", {})
        if properties:
            schema["properties"] = {names.get(name, name): properties[name] for name in properties}
        if "required" in schema:
            schema["required"] = [names.get(name, name) for name in schema["required"]]


def _models_below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in model.__subclasses__():
        yield one
        yield from _models_below(one)


def _describe_problems(found: dict[str, Any]) -> None:
    schemas = found["components"]["schemas"]
    _, definitions = models_json_schema(
        [(Problem, "serialization")], by_alias=False, ref_template=_REF
    )
    schemas |= definitions["$defs"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    content = {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="Problem")}}}
    for path in found["paths"].values():
        for operation in path.values():
            for status, answer in operation["responses"].items():
                if status.startswith(("4", "5")):
                    answer["content"] = content
