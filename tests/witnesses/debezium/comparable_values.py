"""Brings PostgreSQL's texts and Debezium's JSON values of one column into one form, in which they can be compared.

    text of PostgreSQL ──of_text(kind)──► value ◄──of_event(kind, field)── value of an event

A value that is merely written otherwise is equal. Bounds of arrays, lengths of bit strings, trailing zeros of a
`numeric` and the zone of a `timetz` are not compared.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

_MOMENT: Final = re.compile(
    r"(?:(?P<y>[+-]?\d+)-(?P<m>\d\d)-(?P<d>\d\d))?[ T]?"
    r"(?:(?P<H>\d\d):(?P<M>\d\d)(?::(?P<S>\d\d)(?:\.(?P<f>\d+))?)?(?P<z>Z|[+-]\d\d(?::?\d\d){0,2})?)?(?P<bc> BC)?"
)
_INTERVAL: Final = re.compile(
    r"(?:(-?\d+) years?)? ?(?:([+-]?\d+) mons?)? ?(?:([+-]?\d+) days?)? ?(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d+))?)?"
)
_ISO_INTERVAL: Final = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?T?(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+(?:E-?\d+)?)S)?"
)
_DAY_US: Final = 86_400_000_000
_INTEGERS: Final = ("int2", "int4", "int8", "oid")
_VECTORS: Final = ("int2vector", "oidvector")
_SHAPES: Final = ("point", "line", "lseg", "box", "path", "polygon", "circle")
_COORDINATE: Final = re.compile(r"[-+.\w]+")
# Debezium's words for two values of `numeric` in mode "string".
_SPECIAL: Final = {"POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}
_MOMENTS: Final = ("date", "timestamp", "timestamptz", "time", "timetz")
# How many microseconds one unit of a semantic type has.
_UNITS_US: Final = {"Time": 1000, "Timestamp": 1000, "MicroTime": 1, "MicroTimestamp": 1, "Date": _DAY_US}
# Debezium's documentation: the numbers in place of an infinite moment, in microseconds.
_INFINITE: Final = {9223372036825200000: "infinity", -9223372036832400000: "-infinity"}


def of_text(kind: str, text: str | None) -> Any:
    """PostgreSQL's text of a value; `kind` is the type's name in `pg_type`, "_" in front of an array's element."""
    if text is None:
        return None
    if kind.startswith("_"):
        return _of_elements(kind[1:], _elements(text, ";" if kind == "_box" else ","))
    if kind in _VECTORS:
        return tuple(map(int, text.split()))
    if kind in _INTEGERS:
        return int(text)
    if kind == "bool":
        return text == "t"
    if kind == "numeric":
        return _number(text)
    if kind == "money":
        return _number(re.sub(r"[$,]", "", text))
    if kind in ("float4", "float8"):
        return _float(kind, text)
    if kind in _MOMENTS:
        return _moment(text, kind)
    if kind == "interval":
        return _interval(text)
    if kind in ("bit", "varbit"):
        return int(text or "0", 2)
    if kind in _SHAPES:
        return _shape(text)
    if kind in ("json", "jsonb"):
        return text.strip()
    return text


def of_event(kind: str, field: Mapping[str, Any], value: Any) -> Any:
    """A value of an event, whose schema is `field`; its own form where it is none of the kind's."""
    try:
        return _of_event(kind, field, value)
    except (ValueError, TypeError, KeyError, InvalidOperation, binascii.Error, OverflowError):
        return "?", json.dumps(value)


def _of_event(kind: str, field: Mapping[str, Any], value: Any) -> Any:
    semantic, stored = str(field.get("name") or "").rpartition(".")[2], field.get("type")
    if value is None:
        return None
    if kind in _VECTORS and isinstance(value, list):
        return tuple(value)
    if kind.startswith("_") and isinstance(value, list):
        items = field.get("items") or {}
        return tuple(of_event(kind if isinstance(one, list) else kind[1:], items, one) for one in value)
    if kind in ("bit", "varbit"):
        return int(value) if isinstance(value, bool) else int.from_bytes(base64.b64decode(value), "little")
    if kind == "bytea" and stored == "bytes":
        return "\\x" + base64.b64decode(value).hex()
    if stored == "bytes":  # of a type that the engine does not know: PostgreSQL's text
        return of_text(kind, base64.b64decode(value).decode())
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind in _MOMENTS and semantic in _UNITS_US:
        moment = value * _UNITS_US[semantic]
        return _INFINITE.get(value) or _INFINITE.get(moment) or moment
    if kind in ("float4", "float8"):
        return _float(kind, value)
    if kind == "point" and isinstance(value, dict):
        return _shape(f"({value['x']},{value['y']})")
    if kind == "interval":
        return _iso_interval(value)
    if kind == "money":
        return _number(value)
    return of_text(kind, value if isinstance(value, str) else str(value))


def _number(text: str) -> str:
    number = Decimal(_SPECIAL.get(text, text))
    if not number.is_finite():
        return str(number).lower()
    whole, _, fraction = f"{number:f}".partition(".")
    return f"{whole}.{fraction}".rstrip("0").rstrip(".") if fraction else whole


def _shape(text: str) -> tuple[str, ...]:
    """The numbers, and the brackets around them."""
    return _COORDINATE.sub("", text), *(repr(float(number)) for number in _COORDINATE.findall(text))


def _float(kind: str, value: Any) -> str:
    number = float(value)
    return repr(struct.unpack("f", struct.pack("f", number))[0] if kind == "float4" else number)


def _moment(text: str, kind: str) -> int | str:
    """Microseconds since 1970, or of the day."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        return text
    days = 0
    if found["y"]:
        year = int(found["y"])
        days = _days(1 - year if found["bc"] else year, int(found["m"]), int(found["d"]))
    hours, minutes, seconds = (int(found[one] or 0) for one in "HMS")
    us = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int((found["f"] or "0").ljust(6, "0")[:6])
    if zone := (found["z"] or "").strip("Z"):
        parts = [int(part) for part in re.findall(r"\d\d", zone)]
        offset = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False)) * 1_000_000
        us -= offset if zone[0] == "+" else -offset
    if kind == "timetz":
        us %= _DAY_US
    return days * _DAY_US + us


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, of any year."""
    shifted = year - (month <= 2)
    era, of_era = divmod(shifted, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _interval(text: str) -> tuple[int, int, int] | str:
    found = _INTERVAL.fullmatch(text)
    if found is None:
        return text
    years, months, days = (int(one or 0) for one in found.groups()[:3])
    sign, hours, minutes, seconds, fraction = found.groups()[3:]
    us = (int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)) * 1_000_000
    us += int((fraction or "0").ljust(6, "0"))
    return years * 12 + months, days, -us if sign == "-" else us


def _iso_interval(text: str) -> tuple[int, int, int] | str:
    found = _ISO_INTERVAL.fullmatch(text)
    if found is None:
        return text
    years, months, days, hours, minutes = (int(one or 0) for one in found.groups()[:5])
    us = int(Decimal(found[6] or 0) * 1_000_000) + (hours * 60 + minutes) * 60_000_000
    return years * 12 + months, days, us


def _of_elements(kind: str, elements: list[Any]) -> tuple[Any, ...]:
    return tuple(_of_elements(kind, one) if isinstance(one, list) else of_text(kind, one) for one in elements)


def _elements(text: str, delimiter: str) -> list[Any]:
    """The nested lists of an array's text, NULL as None."""
    token = re.compile(rf'[{{}}]|"(?:[^"\\]|\\.)*"|{delimiter}|(?:[^{{}}"{delimiter}\\]|\\.)+', re.DOTALL)
    stack: list[list[Any]] = [[]]
    for found in token.finditer(text.partition("=")[2] if text.startswith("[") else text):
        one = found[0]
        if one == "{":
            stack.append([])
        elif one == "}":
            stack[-2].append(stack.pop())
        elif one.startswith('"'):
            stack[-1].append(re.sub(r"\\(.)", r"\1", one[1:-1], flags=re.DOTALL))
        elif one != delimiter:
            stack[-1].append(None if one == "NULL" else re.sub(r"\\(.)", r"\1", one))
    return stack[0][0]  # type: ignore[no-any-return]
