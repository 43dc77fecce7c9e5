"""Reading and writing protobuf messages without a description, field by field."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import empty_pb2, unknown_fields

Fields = dict[int, list[Any]]


def fields(data: bytes) -> Fields:
    """The values of a serialised message by field number: integers, or bytes.

    Raises: google.protobuf.message.DecodeError: it is not a message.
    """
    result: Fields = collections.defaultdict(list)
    message = empty_pb2.Empty.FromString(data)
    for field in unknown_fields.UnknownFieldSet(message):
        result[field.field_number].append(field.data)
    return result


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


_SHORT = tuple([bytes([n]) for n in range(128)])


def varint(n: int) -> bytes:
    """An integer."""
    if 0 <= n < 128:
        return _SHORT[n]
    if n < 0:
        n += 1 << 64
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def message_of(number: int, data: bytes) -> bytes:
    """A field with a message, or with text."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def integer_of(number: int, n: int) -> bytes:
    """A field with an integer; absent if it is 0."""
    return varint(number << 3) + varint(n) if n else b""


def integers_of(number: int, ns: Iterable[int]) -> bytes:
    """A repeated field of integers."""
    data = b"".join(map(varint, ns))
    return message_of(number, data) if data else b""
