"""CloudEvents 1.0 in Kafka's binary mode: attributes are `ce_` headers, the value is the JSON data.

Decision logs add the extension attributes `ganglineshard`, `ganglineepoch`, `ganglineseq` and
`ganglinerelease`, and the last record of a transaction `ganglineinputs` (input_offsets.py).

Each type belongs to one topic of the catalog. In any other topic it is not a valid event, so a
client that may write to a stream cannot write events of a decision log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeGuard

from pydantic import ValidationError

from gangline_bus.input_offsets import HEADER as INPUTS
from gangline_bus.ports import Headers, OutRecord, Record, TopicPartition
from gangline_bus.unknown import count_unknown
from gangline_schemas.base import YEARS, Event, FieldError, field_errors, to_utc, wrong_parts
from gangline_schemas.catalog import catalog, event_types, topic_of
from gangline_schemas.envelope import Envelope, LogPosition
from gangline_schemas.secrets import redact

CONTENT_TYPE = "application/json"
RELEASE_HEADER = "ce_ganglinerelease"
"""The release of the service that decided the event: what its log needs to be read."""
_MAX_ATTRIBUTE_BYTES = 1024
_MAX_HEADERS = 64
_FIELD = {"extra_forbidden"}
_VALUE = {"enum", "literal_error"}


class UndecodableError(Exception):
    """A record that is not a valid event. Carries its readable attributes, never its data.

    `reason` is one line; `fields` are the data's errors when the attributes themselves were fine.
    """

    def __init__(
        self,
        reason: str,
        *,
        attributes: Mapping[str, str] | None = None,
        fields: tuple[FieldError, ...] = (),
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.attributes = dict(attributes or {})
        self.fields = fields


class FromLaterError(UndecodableError):
    """Nothing is wrong but that this version does not know its type, or a value of an enum.

    Also a field, where the reader asked for its own log.
    """


@dataclass(frozen=True, slots=True)
class Received:
    """An envelope and where it was read.

    `together`: others were read with it, and a `BatchEnd` follows them all. So work that would be
    done again after each of them can wait for it.
    """

    envelope: Envelope
    topic: str
    partition: int
    offset: int
    together: bool = False

    @property
    def place(self) -> TopicPartition:
        """The partition that holds it."""
        return TopicPartition(self.topic, self.partition)


def encode(
    envelope: Envelope,
    *,
    topic: str,
    key: str | None = None,
    partition: int | None = None,
    release: str | None = None,
) -> OutRecord:
    """The record of an event. The key is `key`, or the subject; `release` is its decider's."""
    headers: list[tuple[str, bytes]] = [
        ("ce_specversion", b"1.0"),
        ("ce_id", envelope.id.encode()),
        ("ce_source", envelope.source.encode()),
        ("ce_type", envelope.type.encode()),
        ("ce_subject", envelope.subject.encode()),
        ("ce_time", envelope.time.astimezone(UTC).isoformat().replace("+00:00", "Z").encode()),
        ("content-type", CONTENT_TYPE.encode()),
    ]
    if envelope.traceparent is not None:
        headers.append(("traceparent", envelope.traceparent.encode()))
    if envelope.position is not None:
        headers.append(("ce_ganglineshard", str(envelope.position.shard).encode()))
        headers.append(("ce_ganglineepoch", str(envelope.position.writer_epoch).encode()))
        headers.append(("ce_ganglineseq", str(envelope.position.seq).encode()))
    if release is not None:
        headers.append((RELEASE_HEADER, release.encode()))
    chosen = envelope.subject if key is None else key
    return OutRecord(topic, chosen.encode(), envelope.data.encode(), tuple(headers), partition)


def decode(record: Record, *, own: bool = False) -> Envelope:
    """The event of a record. Raises UndecodableError, which names the error and its place.

    A field that this version does not know is ignored. In its `own` log it is an error: a state
    must not be made of half of what its events say.
    """
    if record.damage:
        raise UndecodableError(record.damage)
    attributes = _attributes(record.headers)
    for name in ("ce_specversion", "ce_id", "ce_source", "ce_type"):
        if not attributes.get(name):
            raise UndecodableError(
                f"the header {name} is missing (CloudEvents 1.0, binary mode)",
                attributes=attributes,
            )
    if attributes["ce_specversion"] != "1.0":
        raise UndecodableError("ce_specversion must be 1.0", attributes=attributes)
    model = event_types().get(attributes["ce_type"])
    if model is None:
        if not own:
            count_unknown(record.topic, attributes["ce_type"], "type")
        raise FromLaterError("ce_type is not a published type", attributes=attributes)
    if not record.topic.endswith(topic_of(model.type).value):  # before it stands the prefix
        raise UndecodableError(
            f"ce_type {model.type} belongs to {topic_of(model.type).value}, not to this topic",
            attributes=attributes,
        )
    return Envelope(
        id=attributes["ce_id"],
        source=attributes["ce_source"],
        time=_time(attributes, record.timestamp_ms),
        subject=attributes.get("ce_subject", ""),
        data=_data(model, record, attributes, own=own),
        traceparent=attributes.get("traceparent"),
        position=_position(attributes),
    )


def receive(record: Record) -> Received:
    """Decode a record and keep its place."""
    return Received(decode(record), record.topic, record.partition, record.offset)


def record_time(timestamp_ms: int) -> datetime:
    """The time of a record in UTC. Raises UndecodableError outside of `YEARS`."""
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return to_utc(datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC))
    raise UndecodableError(f"the record's own time is not in the years {YEARS}")


def _data(model: type[Event], record: Record, attributes: Mapping[str, str], *, own: bool) -> Event:
    found: type[UndecodableError] = UndecodableError
    try:
        return _validated(model, record, own=own)
    except ValidationError as error:
        if _kinds(error) <= _FIELD | _VALUE:
            found = FromLaterError
            if not own:
                count_unknown(record.topic, model.type, "value")
        fields = field_errors(error)
        shown = redact("; ".join(f"{item.field}: {item.message}" for item in fields[:5]))
        reason = f"{model.type}: {shown}"
    except Exception as error:  # noqa: BLE001 - whatever a validator raises, others must be read
        fields, reason = (), f"{model.type}: cannot be read ({type(error).__name__})"
    raise found(reason, attributes=attributes, fields=fields)


def _validated(model: type[Event], record: Record, *, own: bool) -> Event:
    """The data, in another's without fields of later versions. Raises ValidationError."""
    # Logs are few and their writers known, so unknown fields are looked for; streams are not.
    if not own and catalog()[topic_of(model.type)].kind != "log":
        return model.decode(record.value)
    try:
        return model.model_validate_json(record.value)
    except ValidationError as error:
        if own or _kinds(error) != _FIELD:
            raise
    data = model.decode(record.value)  # a list ends at its first error, so there may be more
    count_unknown(record.topic, model.type, "field")
    return data


def _kinds(error: ValidationError) -> set[str]:
    parts = wrong_parts(error.errors(include_url=False, include_input=False))
    return {item["type"] for item in parts}


def event_type(headers: Headers) -> str | None:
    """The ce_type, without a look at anything else; None when there is none that can be read."""
    for name, value in headers:
        if value is not None and name.lower() == "ce_type":
            return value.decode(errors="replace")
    return None


def attributes_of(headers: Headers) -> dict[str, str]:
    """All headers as text, their names in small letters; {} when one cannot be read."""
    try:
        return _attributes(headers)
    except UndecodableError:
        return {}


def _attributes(headers: Headers) -> dict[str, str]:
    if len(headers) > _MAX_HEADERS:
        raise UndecodableError(f"there are more than {_MAX_HEADERS} headers")
    found: dict[str, str] = {}
    for name, value in headers:
        attribute = name.lower()
        if attribute == INPUTS:  # of the log's own writer, and as long as it has inputs
            continue
        if value is None or len(value) > _MAX_ATTRIBUTE_BYTES:
            raise UndecodableError(f"the header {name[:64]} is empty or above 1 KiB")
        if attribute in found and attribute.startswith("ce_"):
            raise UndecodableError(f"the header {name[:64]} is there twice")
        try:
            found[attribute] = value.decode()
        except UnicodeDecodeError:
            raise UndecodableError(f"the header {name[:64]} is not UTF-8") from None
    return found


def _time(attributes: Mapping[str, str], timestamp_ms: int) -> datetime:
    written = attributes.get("ce_time")
    if written is None:
        return record_time(timestamp_ms)
    with contextlib.suppress(ValueError):
        time = datetime.fromisoformat(written)
        if time.tzinfo is not None:
            return to_utc(time)
    raise UndecodableError(
        f"ce_time is not an RFC 3339 time with zone, of the years {YEARS}", attributes=attributes
    )


def _position(attributes: Mapping[str, str]) -> LogPosition | None:
    shard, epoch = attributes.get("ce_ganglineshard"), attributes.get("ce_ganglineepoch")
    seq = attributes.get("ce_ganglineseq")
    if shard is None and epoch is None and seq is None:
        return None
    if not (_is_number(shard) and _is_number(epoch) and _is_number(seq)):
        raise UndecodableError("the log position headers are not three numbers")
    return LogPosition(int(shard), int(epoch), int(seq))


def _is_number(value: str | None) -> TypeGuard[str]:
    return value is not None and value.isdecimal()
