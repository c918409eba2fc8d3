"""The limits of all numbers, texts and collections in the schemas, each once.

A field takes one of these types, or a tighter limit of its own. Numbers stay small enough for
consumers' arithmetic: sums, products and quotients are finite, and dates stay dates. Numbers that a
service derived (`Amount`) are wider than those that they are made of. A text that services write
for people (`Message`) is cut, since a service must not stop over a long sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, StringConstraints

INT53_MAX = 2**53 - 1
"""Whole numbers up to here are exact in every JSON reader, and as a float."""
INT64_MAX = 2**63 - 1
ATTEMPT_MAX = 10**9
MAX_GANG_GPUS = 16_384
MAX_NODES = 16_384
GPUS_PER_NODE = 1024
MESSAGE_CHARS = 4096
METRICS_PER_STEP = 1000
METRIC_NAME_CHARS = 256
METRIC_MAX = 1e300
"""So large a metric may be: also sums of many are finite. Reporters leave out larger ones."""
JSON_DEPTH = 32
"""Brackets within brackets of a free JSON value; all that wraps it is read with up to 200."""
JSON_NAMES = 10_000
SECONDS_MAX = 1e9
"""31 years: nothing that is measured lasts longer."""
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)

PLAIN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]*$"
"""No control characters, no line separators, nothing that reverses the direction of the text."""

Count = Annotated[int, Field(ge=0, le=INT53_MAX)]
Few = Annotated[int, Field(ge=0, lt=2**31)]
"""A number of tries, failures or objects: it fits 32 bits."""
Sample = Annotated[int, Field(ge=0, le=INT64_MAX)]
"""A place in a job's endless order of samples, or a number of them."""
Step = Annotated[int, Field(ge=0, le=INT53_MAX)]
Attempt = Annotated[int, Field(ge=1, le=ATTEMPT_MAX)]
Rank = Annotated[int, Field(ge=0, lt=MAX_GANG_GPUS)]
WorldSize = Annotated[int, Field(ge=1, le=MAX_GANG_GPUS)]
GangSize = Annotated[int, Field(ge=0, le=MAX_GANG_GPUS)]
"""The same, 0 where it is not known."""
EnvName = Annotated[str, StringConstraints(max_length=128)]
GpuIndex = Annotated[int, Field(ge=0, lt=GPUS_PER_NODE)]
Port = Annotated[int, Field(ge=1, le=65535)]
Partition = Annotated[int, Field(ge=0, lt=2**31)]
Offset = Annotated[int, Field(ge=0, le=INT64_MAX)]
"""Of a record in its partition."""
Pid = Annotated[int, Field(ge=0, lt=2**31)]
ExitCode = Annotated[int, Field(ge=0, le=255)]
Signal = Annotated[int, Field(ge=1, le=128)]
Priority = Annotated[int, Field(ge=0, le=100)]
UnixMs = Annotated[int, Field(ge=0, le=int(LATEST.timestamp() * 1000))]

ObjectBytes = Annotated[int, Field(ge=0, le=2**48)]
"""Of one object in the store: 256 TiB."""
Bytes = Annotated[int, Field(ge=0, le=INT64_MAX)]

Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX)]
"""A time that was measured."""
IntervalSeconds = Annotated[float, Field(ge=1e-3, le=86_400)]
"""Between two saves: a millisecond to a day."""
Gigabytes = Annotated[float, Field(ge=0, le=1e9)]
Celsius = Annotated[float, Field(ge=-274, le=10_000)]
Percent = Annotated[float, Field(ge=0, le=100)]
Rate = Annotated[float, Field(ge=0, le=1e9)]
"""Megabytes a second, or watts."""
Ratio = Annotated[float, Field(ge=0, le=1e6)]


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")  # noqa: TRY004 # as pydantic asks
    return value


Gpus = Annotated[int, Field(ge=0, le=10_000_000), BeforeValidator(_no_truth)]
"""Of a team or a cluster."""
Cpus = Annotated[float, Field(ge=0, le=1e8)]
"""Of a gang without GPUs, a team or a cluster, in thousandths."""
Amount = Annotated[float, Field(ge=0, le=1e24)]
"""A number that a service summed up or multiplied: GPU-seconds, costs."""
SCORE_MAX = 1e24
Score = Annotated[float, Field(ge=-SCORE_MAX, le=SCORE_MAX)]
MetricValue = Annotated[float, Field(ge=-METRIC_MAX, le=METRIC_MAX)]

_Plain = StringConstraints(pattern=PLAIN)
Label = Annotated[str, StringConstraints(max_length=256), _Plain]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256), _Plain]
User = Label
RequestId = Annotated[str, StringConstraints(max_length=1024)]
"""The ce_id of a request."""
RequestCeId = Annotated[RequestId, Field(description="The ce_id of the request.")]
RequestCeSource = Annotated[
    RequestId, Field(description="Its ce_source: ids are unique within one.")
]
Release = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z.+-]{1,64}$")]
"""The number of a release, like 0.1.0."""
Month = Annotated[
    str, Field(pattern=r"^[0-9]{4}-[0-9]{2}$", description="The UTC month, like 2026-11.")
]
ShortText = Annotated[str, StringConstraints(min_length=1, max_length=512), _Plain]
ObjectKey = Annotated[str, StringConstraints(min_length=1, max_length=1024), _Plain]
MetricName = Annotated[str, StringConstraints(min_length=1, max_length=METRIC_NAME_CHARS), _Plain]
Labels = Annotated[dict[Name, Label], Field(max_length=64)]
Metrics = Annotated[dict[MetricName, MetricValue], Field(max_length=METRICS_PER_STEP)]
"""The last value of each."""


def cut(text: Any, most: int = MESSAGE_CHARS) -> Any:
    """A text of at most so many characters; other values stay as they are."""
    if isinstance(text, str) and len(text) > most:
        return f"{text[: most - 3]}..."
    return text


Message = Annotated[str, BeforeValidator(cut), StringConstraints(max_length=MESSAGE_CHARS)]
"""A text for people that a service or an agent wrote; cut where it is longer."""


def depth_problem(value: dict[str, JsonValue]) -> str | None:
    """Where free JSON is nested deeper than `JSON_DEPTH`, as a sentence; None: nowhere."""
    return next((f"{place} {_TOO_DEEP}" for place, _, deep in _parts(value) if deep), None)


def json_problem(value: dict[str, JsonValue]) -> str | None:
    """Why free JSON would not be the same when it is written and read again, as a sentence.

    None when it would: depth is bounded, numbers are finite and fit 64 bits, texts are Unicode.
    Cost: O(its parts), without recursion.
    """
    for place, part, deep in _parts(value):
        problem = _TOO_DEEP if deep else _part_problem(part)
        if problem is not None:
            return f"{place} {problem}"
    return None


_TOO_DEEP = f"is nested deeper than {JSON_DEPTH} levels"
_PLACE_CHARS = 200


def _parts(value: dict[str, JsonValue]) -> Iterator[tuple[str, JsonValue, bool]]:
    """(place, part, whether it is nested too deep, so that nothing below it follows)."""
    left: list[tuple[str, int, JsonValue]] = [("", 0, value)]
    while left:
        place, depth, part = left.pop()
        deep = depth > JSON_DEPTH
        yield place, part, deep
        if deep or not isinstance(part, dict | list):
            continue
        for key, item in part.items() if isinstance(part, dict) else enumerate(part):
            below = f"{place}.{key}" if place else str(key)
            left.append((below[:_PLACE_CHARS], depth + isinstance(item, dict | list), item))


def _part_problem(part: JsonValue) -> str | None:
    if isinstance(part, dict):
        return "has a name that is not Unicode text" if any(map(is_torn, part)) else None
    if isinstance(part, str):
        return "is not Unicode text" if is_torn(part) else None
    if isinstance(part, float):
        no_number = "is not a finite number, and JSON has no such numbers; give it as text"
        return None if math.isfinite(part) else no_number
    if isinstance(part, int) and abs(part) > INT64_MAX:
        return "is a whole number beyond 64 bits; give it as text"
    return None


def is_torn(text: str) -> bool:
    """Whether it holds half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _readable_again(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    problem = json_problem(value)
    if problem is not None:
        raise ValueError(problem)
    return value


def _not_too_deep(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    problem = depth_problem(value)
    if problem is not None:
        raise ValueError(problem)
    return value


_FreeJson = Annotated[
    dict[str, JsonValue],
    Field(max_length=JSON_NAMES, json_schema_extra={"x-json-depth": JSON_DEPTH}),
]
JsonObject = Annotated[_FreeJson, AfterValidator(_readable_again)]
"""Names and free JSON values that are the same when they are written and read again."""
FreeState = Annotated[_FreeJson, AfterValidator(_not_too_deep)]
"""Data of a program in its checkpoint; random generators have numbers above 64 bits."""
