"""Finds the tables at the source that a text of a form means: an id, a name, or a pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.config import TableRule
from tidemark.names import TableName
from tidemark.source.catalogue.catalog import CapturedTable
from tidemark.wording import TABLE_CUTOFF, closest


def unknown_table(text: str, at_source: Mapping[str, CapturedTable], taken: Sequence[str]) -> str:
    """The text that matches no table, for a message, with the most similar table name that is not in `taken`."""
    meant = closest(text, [str(captured.name) for captured in at_source.values()], taken=taken, cutoff=TABLE_CUTOFF)
    return f"{text!r}" + (f" (did you mean {meant!r}?)" if meant else "")


def matching_tables(text: str, names: Mapping[str, TableName]) -> list[str]:
    """The ids of the tables that the text matches: an id, a name, or a pattern as in the pipeline file. `names` are
    the names at the source, by id."""
    shown = [table for table, name in names.items() if text in (table, str(name))]
    if shown and set(text) & set("*?["):
        return shown  # a name with such a character: as a pattern it would match other tables too
    rule = TableRule(text)
    try:
        return list(dict.fromkeys([*shown, *(table for table, name in names.items() if rule.matches(name))]))
    except ValueError:
        return shown
