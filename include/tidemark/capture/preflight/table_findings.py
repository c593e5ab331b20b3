"""Finds the errors of each table, which affect that table alone (R6), and records them in the ledger.

    matching     the tables of the file that the source has
     ├─ barred   its errors bar it: always, or only as long as it has not joined (`findings.Bars`)
     └─ selected the tables that are published and join

A person who may create a table must not be able to stop the pipeline. Only one finding here stops everything: no table
is left, and no slot exists that would have to move on. If the database has no table at all, the pipeline waits for one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tidemark.capture.preflight_context import PreflightContext
from tidemark.config import PipelineConfig
from tidemark.errors import Move
from tidemark.findings import Finding, listed
from tidemark.ledger.captured import table_errors
from tidemark.ledger.captured import tables as ledger_tables
from tidemark.ledger.captured.table_errors import TableError
from tidemark.ledger.connection import Ledger
from tidemark.ledger.reading import backfills
from tidemark.names import TableName
from tidemark.source.catalogue import inspection, publication, source_tables
from tidemark.source.catalogue.column_findings import column_findings
from tidemark.source.catalogue.inspection import ServerFacts
from tidemark.source.catalogue.publication import Publication
from tidemark.source.catalogue.publication_findings import publication_findings, publication_work, work_findings
from tidemark.source.catalogue.source_tables import Matching, SourceTable
from tidemark.source.wal.slot import SlotState
from tidemark.wording import plural

# The check of the finding that makes the pipeline wait.
NO_TABLE_YET: Final = "no table yet"


@dataclass(frozen=True, slots=True)
class KnownTables:
    """The ledger's tables: those that have joined, and the masked and left-out columns that are followed under
    another name. Empty if the ledger is not ready."""

    captured: frozenset[TableName] = frozenset()
    followed: Collection[tuple[TableName, str]] = ()


def select(
    source: psycopg.Connection[Any],
    config: PipelineConfig,
    facts: ServerFacts,
    findings: list[Finding],
    *,
    slot: SlotState | None,
    in_ledger: KnownTables,
) -> tuple[Matching, Publication | None]:
    """The file's tables without those that an error bars, and the publication. All findings about them are added to
    `findings`. Findings that are in it already may bar a table too."""
    matched = source_tables.matching(source, config)
    published = publication.read(source, config.publication)
    findings += inspection.table_findings(matched, config, facts, in_ledger.followed)
    findings += publication_findings(config, matched, published, facts)
    findings += column_findings(config, matched, published, facts)
    selected = matched.without(barred_by(findings, in_ledger.captured & covered(published)))
    work = publication_work(config, selected, published, facts)
    findings += work_findings(config, published, work, facts, slot=slot)
    if not (captured_tables(selected, published) or work.create or work.add):
        if slot is None and published is None and not inspection.has_tables(source):
            findings.append(
                Finding.warning(
                    NO_TABLE_YET,
                    "The database has no table yet, so there is nothing to capture, and no slot is created",
                    "Create the tables that the file names. The next run then creates the slot",
                    Move.FIX_SOURCE,
                )
            )
            return selected, published
        # An existing slot must move on nevertheless, and it is read with the publication.
        findings.append(
            Finding(
                "error" if slot is None else "warning",
                "tables",
                "None of the tables that the file names can be captured",
                "Follow the remedy of each table's finding, or correct `tables` in the pipeline file",
                Move.FIX_CONFIG,
            )
        )
    return selected, published


def keep(survey: PreflightContext, captured: frozenset[TableName]) -> None:
    """Record the tables' errors in the ledger, from which runs and pages read them."""
    errors: dict[str, list[TableError]] = {}
    for finding in survey.findings:
        for table in finding.tables:
            errors.setdefault(str(survey.table_ids.id_of_name(table)), []).append(
                TableError(finding.check, finding.message, finding.remedy, finding.bars)
            )
    barred = {str(survey.table_ids.id_of_name(table)) for table in barred_by(survey.findings, captured)}
    table_errors.keep(survey.ledger, errors, barred)


def barred_by(findings: Iterable[Finding], captured: frozenset[TableName]) -> frozenset[TableName]:
    """The tables that their errors bar. Some errors only bar a table that has not joined."""
    errors = [finding for finding in findings if finding.severity == "table"]
    always = {table for finding in errors if finding.bars == "capture" for table in finding.tables}
    joining = {table for finding in errors if finding.bars == "joining" for table in finding.tables}
    return frozenset(always | (joining - captured))


def covered(published: Publication | None) -> frozenset[TableName]:
    return frozenset() if published is None else published.covered


def captured_tables(matched: Matching, published: Publication | None) -> list[SourceTable]:
    return [] if published is None else [table for table in matched.tables if table.table in published.covered]


def backfill_findings(ledger: Ledger, config: PipelineConfig) -> Iterator[Finding]:
    """Findings on the tables that need a backfill. Parked tables are left out: nothing of them can be read or
    merged, and their own remedy comes first."""
    reasons: dict[tuple[str, bool], list[str]] = {}
    unreadable = backfills.unreadable(ledger)
    for row in ledger_tables.all_of(ledger):
        if not (row.life.is_captured and row.life.needs_backfill and not row.life.is_parked):
            continue
        if row.table in unreadable:
            yield Finding.warning(
                "backfill",
                f"{row.table} needs a backfill: {row.backfill_reason}; its last one could not be read",
                unreadable[row.table],
                Move.FIX_SOURCE,
            )
        else:
            reasons.setdefault((row.backfill_reason or "", bool(row.lost_keys)), []).append(row.table)
    for (reason, by_keys), names in reasons.items():
        way = f"start a backfill of {'it' if len(names) == 1 else 'them'}"
        if by_keys:
            way = f"a run of {config.pipeline}_backfill that names no table reads these rows alone"
        yield Finding.warning(
            "backfill",
            f"{listed(names)} {plural(len(names), 'needs')} a backfill{':' if len(names) == 1 else ', each because'} "
            f"{reason}",
            f"Until then current {'has the lost changes' if by_keys else 'lacks those rows'}; {way}",
            Move.BACKFILL,
        )
