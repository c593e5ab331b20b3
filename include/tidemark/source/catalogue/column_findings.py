"""Finds columns of the source that are not captured, or that are captured as text only.

Pure. Columns that the pipeline file leaves out or masks are the user's choice, and no finding. Source: PostgreSQL
documentation, 5.4 "Generated Columns", 29.6 "Generated Column Replication".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from shlex import quote
from typing import Final

from tidemark.config import PipelineConfig
from tidemark.findings import Finding, listed
from tidemark.names import TableName, spelled
from tidemark.source.catalogue.identifiers import quoted
from tidemark.source.catalogue.inspection import ServerFacts
from tidemark.source.catalogue.publication import Publication
from tidemark.source.catalogue.source_tables import Matching, SourceTable
from tidemark.wording import counted, plural

UNCONSTRAINED: Final = "numeric"
DECIMAL: Final = "decimal(38,10)"
# At most so many lines are printed: nobody reads a list of five hundred tables.
LINES: Final = 20
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def column_findings(
    config: PipelineConfig, matched: Matching, publication: Publication | None, facts: ServerFacts
) -> Iterator[Finding]:
    for table in matched.tables:
        yield from _uncaptured(config, table, publication, facts)
    yield from _captured_as_text(matched.tables)


def _uncaptured(
    config: PipelineConfig, table: SourceTable, publication: Publication | None, facts: ServerFacts
) -> Iterator[Finding]:
    """A warning about the generated columns that the publication does not carry. A column list has a note of its
    own."""
    members = () if publication is None else publication.direct
    columns = next((member.columns for member in members if member.table == table.table), None)
    published = facts.major >= 18 and (publication is None or publication.generated_columns)
    missing = {
        column.name: "virtual" if column.generated == "v" else "stored"
        for column in table.captured_columns
        if column.generated
        and (column.generated == "v" or (not published if columns is None else column.name not in columns))
    }
    if not missing:
        return
    listing = listed(f"{spelled(name)} ({kind})" for name, kind in missing.items())
    command = f"tidemark tables {quote(config.path)} {quote(str(table.table))}"
    them = "it" if len(missing) == 1 else "them"
    ways = [f"{command} prints a view that computes {them}"]
    if "stored" in missing.values() and facts.major >= 18 and columns is None:
        ways.append(f"ALTER PUBLICATION {quoted(config.publication)} SET (publish_generated_columns = stored)")
    elif "stored" in missing.values() and facts.major < 18:
        ways.append("PostgreSQL 18 and newer can publish stored ones")
    yield Finding.warning(
        "generated_columns",
        f"{table.table} is captured without its generated {plural(len(missing), 'column')} {listing}: the "
        f"publication does not carry {them}",
        ". ".join(ways),
    )


def _captured_as_text(tables: Iterable[SourceTable]) -> Iterator[Finding]:
    numeric: dict[TableName, list[str]] = {}
    nested: dict[TableName, list[str]] = {}
    for table in tables:
        for column in table.captured_columns:
            if column.name in (*table.rule.target, *table.rule.mask, *table.relation.key):
                continue
            if column.dimensions > 1:
                nested.setdefault(table.table, []).append(column.name)
            elif column.type == UNCONSTRAINED:
                numeric.setdefault(table.table, []).append(column.name)
    if numeric:
        yield Finding.note(
            "numeric",
            f"{_counted(numeric)} numeric without a precision, for which Delta has no exact type; captured as text: "
            f"{_names(numeric)}",
            "If you know a precision, write it into the pipeline file, under `tables:`\n"
            f"{target_lines(numeric, DECIMAL)}\n"
            "         Values beyond it are then counted, NULL in current, and text in history",
        )
    if nested:
        yield Finding.note(
            "arrays",
            f"{_counted(nested)} declared with more than one dimension, and captured as PostgreSQL's text: "
            f"{_names(nested)}",
        )


def target_lines(columns: Mapping[TableName, Iterable[str]], target: str) -> str:
    """The entries of the pipeline file that give these columns the target, one line per table, for the user to
    paste."""
    lines = [
        f"           - {{name: {_yaml(str(table))}, target: {{"
        f"{', '.join(f'{_yaml(name)}: {_yaml(target)}' for name in names)}}}}}"
        for table, names in columns.items()
    ]
    more = [] if len(lines) <= LINES else [f"           # and {counted(len(lines) - LINES, 'table')} more"]
    return "\n".join(lines[:LINES] + more)


def _yaml(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _counted(columns: Mapping[TableName, list[str]]) -> str:
    number = sum(len(names) for names in columns.values())
    return f"{counted(number, 'column')} of {counted(len(columns), 'table')} {plural(number, 'is')}"


def _names(columns: Mapping[TableName, list[str]]) -> str:
    return listed(f"{table}.{spelled(name)}" for table, names in columns.items() for name in names)
