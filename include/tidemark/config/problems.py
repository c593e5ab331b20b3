"""Turns pydantic's errors about a pipeline file into problems with a line, a sentence and a "did you mean"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import ErrorDetails

from tidemark.config.sections import SECTIONS, descriptions
from tidemark.wording import closest

# The path to a value in the file: keys, and numbers of entries.
Place = tuple[str | int, ...]

# pydantic appends it to the place of a value whose key is wrong.
KEY: Final = "[key]"

_ALONE: Final = {"lake": ", or the root alone", "tables[]": ", or the name alone"}
_MAPPINGS: Final = {"mask": "a mapping from column to null or sha256", "target": "a mapping from column to type"}


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A problem in a pipeline file. `line` counts from 1, and is 0 if the file has no line for it."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


def problem_of(error: ErrorDetails, root: Any) -> tuple[Place, str]:
    """The place and the sentence of one error; `root` is the value of the whole file."""
    place, kind, context = error["loc"], error["type"], error.get("ctx", {})
    if kind == "contradiction":
        return context["place"], context["text"]
    if kind == "missing":
        description = descriptions(SECTIONS[_section(place[:-1])])[str(place[-1])]
        return place[:-1], f"{_option(place)} is missing: {description}"
    if kind == "extra_forbidden":
        return (*place, KEY), _unknown_key(place, root)
    if kind == "value_error":
        return place, f"{_option(place)} {context['error']}"
    if kind == "expected_unshown":
        return place, f"{_option(place)} must be {error['msg']}"
    expected, hint = _expected(error), ""
    if kind == "literal_error":
        choices = re.findall("'(.*?)'", context["expected"])
        expected, hint = context["expected"].replace("'", ""), did_you_mean(str(error["input"]), choices)
    return place, f"{_option(place)} must be {expected}, not {_kind_of_value(error['input'])}{hint}"


def did_you_mean(text: str, choices: Sequence[str], taken: Sequence[str] = ()) -> str:
    meant = closest(text.lower(), choices, taken=taken)
    return f"; did you mean {meant!r}?" if meant else ""


def _expected(error: ErrorDetails) -> str:
    place = error["loc"]
    match error["type"]:
        case "model_type":
            section = _section(place)
            return f"a mapping with the keys {', '.join(SECTIONS[section].model_fields)}{_ALONE.get(section, '')}"
        case "dict_type":
            return _MAPPINGS.get(str(place[-1]), "a mapping of Spark settings")
        case "tuple_type":
            return "a list of columns" if place[-1] == "leave_out" else "a list with at least one table or pattern"
    return error["msg"]


def _unknown_key(place: Place, root: Any) -> str:
    key, section = str(place[-1]), _section(place[:-1])
    for part in place[:-1]:
        root = root[part]
    return f"unknown key {key!r}{f' in {section}' if section else ''}{_hint(key, section, list(root))}"


def _hint(key: str, section: str, keys: Sequence[str]) -> str:
    """The known key that an unknown key resembles and that is not among `keys`, or the section that the unknown key
    belongs to."""
    close = did_you_mean(key, list(SECTIONS[section].model_fields), keys)
    if close:
        return close
    sections = {option: name for name in SECTIONS for option in SECTIONS[name].model_fields if name != section}
    if key in sections:
        return f"; {key!r} belongs to {sections[key] or 'the top of the file'}"
    match = closest(key.lower(), sections, taken=SECTIONS[section].model_fields, cutoff=0.7)
    if match is not None:
        where = f"in {sections[match]}" if sections[match] else "at the top of the file"
        return f"; did you mean {match!r} {where}?"
    return f"; known are {', '.join(SECTIONS[section].model_fields)}"


def _section(place: Place) -> str:
    return "tables[]" if place[:1] == ("tables",) and len(place) > 1 else ".".join(map(str, place))


def _option(place: Place) -> str:
    """The name of the option at a place, for a sentence."""
    match [part for part in place if part != KEY]:
        case []:
            return "the file"
        case ["tables", int()]:
            return "an entry of tables"
        case ["tables", int(), "leave_out", int()]:
            return "a column of leave_out"
        case ["tables", int(), "mask" | "target" as option, column]:
            return f"{option} of column {column!r}"
        case ["tables", int(), "name"]:
            return "the name of a table"
        case ["tables", int(), option]:
            return str(option)
        case ["spark", "conf", setting]:
            return "spark.conf" if KEY in place else f"spark.conf {setting}"
        case parts:
            return ".".join(map(str, parts))


def _kind_of_value(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    if value is None or isinstance(value, bool):
        return "empty" if value is None else str(value).lower()
    return f"the number {value}" if isinstance(value, int | float) else repr(str(value))
