"""The answer to a failed request (RFC 9457)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gangline_schemas.base import FieldError


class Problem(BaseModel):
    """The problem, and the way out."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:gangline:problem:invalid",
                    "title": "Unprocessable Content",
                    "status": 422,
                    "detail": "resources.gpus: Input should be greater than or equal to 0",
                    "instance": "urn:gangline:request:4bf92f3577b34da6a3ce929d0e0e4736",
                    "errors": [
                        {
                            "field": "resources.gpus",
                            "message": "Input should be greater than or equal to 0",
                        }
                    ],
                }
            ]
        }
    )

    type: str = Field(description="urn:gangline:problem: and a code that does not change.")
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    instance: str = Field(description="urn:gangline:request: and the request's trace id.")
    errors: tuple[FieldError, ...] = ()
