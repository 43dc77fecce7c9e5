"""Reading protobuf messages without a description, field by field."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

from google.protobuf import empty_pb2, unknown_fields

Fields = dict[int, list[Any]]


def fields(data: bytes) -> Fields:
    """The values of a serialised message by field number: integers, or bytes.

    Raises: google.protobuf.message.DecodeError: it is not a message.
    """
    found: Fields = collections.defaultdict(list)
    message = empty_pb2.Empty.FromString(data)
    for field in unknown_fields.UnknownFieldSet(message):
        found[field.field_number].append(field.data)
    return found


def message(found: Fields, number: int) -> Fields:
    """The message in a field; without fields, if it is not set."""
    return fields(found[number][0]) if number in found else collections.defaultdict(list)


def integer(found: Fields, number: int, default: int = 0) -> int:
    """The (signed) integer in a field."""
    value = found[number][0] if number in found else default
    return value - (1 << 64) if value >= 1 << 63 else value


def integers(found: Fields, number: int) -> list[int]:
    """The repeated (not negative) integers in a field, packed or not."""
    values: list[int] = []
    for x in found.get(number, ()):
        values += _varints(x) if isinstance(x, bytes) else [x]
    return values


def _varints(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield value
            value = shift = 0
