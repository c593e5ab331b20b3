"""Reads JSON into records, strictly, and turns records into what `json` writes.

A record is a frozen msgspec struct: its annotations are the format. Reading refuses a field that the record lacks, a
field that the text lacks, a name that stands twice in one object, a value of another type, and a number that 64 bits or
a double cannot hold. The error names the place and does not quote the text. LSNs are written as PostgreSQL's text.
Pure.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any, Final, Self, TypeVar

import msgspec

from tidemark.lsn import Lsn

R = TypeVar("R")

# msgspec's messages that quote nothing but types and the names of our own fields, and where its messages have a place.
_QUOTES_NOTHING: Final = re.compile(r"(Expected|Object missing) [^\n]*")
_PLACE: Final = re.compile(r".* - at ((?:`key` in )?`\$[\w.\[\]]*`)", re.DOTALL)


class NotStrictJson(ValueError):
    """The text, or what was read of it, is not the JSON of the record; the message quotes nothing of it."""


class JsonRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record as a part of a JSON text, in a file or in the ledger."""

    def to_json(self) -> dict[str, Any]:
        """What `json.dumps` takes."""
        raw: dict[str, Any] = to_builtins(self)
        return raw

    @classmethod
    def from_json(cls, raw: object) -> Self:
        """The record that was written as `raw`. Raises NotStrictJson."""
        return to_record(raw, cls)


def to_builtins(record: object) -> Any:
    return msgspec.to_builtins(record, str_keys=True, enc_hook=_text_of)


def to_record(raw: object, kind: type[R]) -> R:
    """Raises NotStrictJson if `raw` is no record of that kind."""
    try:
        return msgspec.convert(raw, kind, str_keys=True, dec_hook=_value_of)
    except msgspec.ValidationError as refused:
        raise NotStrictJson(_refusal(refused)) from None
    except ValueError:  # half of a surrogate pair in a name
        raise NotStrictJson("a name that is no text") from None


def parse(text: str | bytes) -> Any:
    """What the text says, as objects of Python's. Raises NotStrictJson."""
    try:
        return json.loads(
            text.decode() if isinstance(text, bytes) else text,
            object_pairs_hook=_unique,
            parse_int=_int64,
            parse_float=_finite,
            parse_constant=_finite,
        )
    except NotStrictJson:
        raise
    except UnicodeDecodeError:
        raise NotStrictJson("its bytes are not UTF-8") from None
    except json.JSONDecodeError as broken:
        raise NotStrictJson(f"it is no JSON from line {broken.lineno}, column {broken.colno} on") from None
    except RecursionError:
        raise NotStrictJson("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    raw = dict(pairs)
    if len(raw) != len(pairs):
        raise NotStrictJson("a name stands twice in one object")
    return raw


def _int64(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (number := int(digits)) < 2**63:
        raise NotStrictJson("a number has more than 64 bits")
    return number


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise NotStrictJson("a number is not finite")
    return number


def _text_of(value: Any) -> str:
    if isinstance(value, Lsn):
        return str(value)
    kind = type(value).__name__
    raise TypeError(
        f"a record cannot hold a {kind}: JSON has none; give the field a type of JSON's, or convert it here"
    )


def _value_of(kind: type[Any], raw: Any) -> Any:
    if kind is Lsn and isinstance(raw, str):
        return Lsn.parse(raw)
    raise ValueError(f"not a {kind.__name__}")


def _refusal(refused: msgspec.ValidationError) -> str:
    """What was refused and where, without a text that was read."""
    message = str(refused)
    if _QUOTES_NOTHING.fullmatch(message):
        return message
    place = _PLACE.fullmatch(message)
    return "a field or value that does not belong there" + ("" if place is None else f" - at {place[1]}")
