"""Compares the publication with the tables of the file -> the changes to make, and findings. Pure.

The changes are a `PublicationWork`. If preflight may not make them (`manage_publication: false`, or a missing right), a
finding has their SQL. A table is added only if PostgreSQL then still accepts the application's own UPDATE and DELETE,
or if the file names it without a pattern (R9). Source: PostgreSQL documentation, "CREATE PUBLICATION", 29.1.1 "Replica
Identity".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.config import PipelineConfig
from tidemark.errors import Move
from tidemark.findings import Bars, Finding, listed
from tidemark.names import TableName
from tidemark.source.catalogue.identifiers import qualified, quoted, readable
from tidemark.source.catalogue.inspection import ServerFacts
from tidemark.source.catalogue.publication import OPERATIONS, Publication, add_statement, create_statement
from tidemark.source.catalogue.source_tables import Matching, SourceTable
from tidemark.source.wal.slot import SlotState


@dataclass(frozen=True, slots=True)
class PublicationWork:
    """The changes that bring the publication to the file's tables; all empty if none is needed. `unpublished` are
    tables that only another role can add: their owner, or the publication's."""

    create: tuple[TableName, ...] = ()
    add: tuple[TableName, ...] = ()
    drop: tuple[TableName, ...] = ()
    unpublished: tuple[SourceTable, ...] = ()


def eligible(table: SourceTable, facts: ServerFacts, publication: Publication | None) -> bool:
    """Whether the table may be added to a publication: without harm to its own application (R9), or because the
    file names it without a pattern."""
    if table.unlogged:
        return False
    reason = table.breaks_updates(_generated_published(facts, publication))
    return reason is None or (table.exact and "generated column" not in reason)


def publication_work(
    config: PipelineConfig, matching: Matching, publication: Publication | None, facts: ServerFacts
) -> PublicationWork:
    """The changes for the tables of `matching`, which has no barred tables any more."""
    fit = [table for table in matching.tables if eligible(table, facts, publication)]
    if publication is None:
        ours = [table for table in fit if table.owned or not config.manage_publication]
        return PublicationWork(
            create=tuple(table.table for table in ours),
            unpublished=tuple(table for table in fit if table not in ours),
        )
    if publication.all_tables:
        return PublicationWork()
    missing = [table for table in fit if table.table not in publication.covered]
    drop = tuple(member.table for member in publication.direct if config.rule(member.table) is None)
    if not (config.manage_publication and publication.owned):
        return PublicationWork(unpublished=tuple(missing))
    return PublicationWork(
        add=tuple(table.table for table in missing if table.owned),
        drop=drop,
        unpublished=tuple(table for table in missing if not table.owned),
    )


def publication_findings(
    config: PipelineConfig,
    matching: Matching,
    publication: Publication | None,
    facts: ServerFacts,
) -> Iterator[Finding]:
    """Findings on the publication's options and on the tables' replica identities."""
    if publication is not None:
        yield from _option_findings(config, matching, publication)
        if publication.all_tables:
            yield Finding.warning(
                "publication",
                f'Publication "{publication.name}" is FOR ALL TABLES: each new table without a replica identity '
                "refuses UPDATE and DELETE",
                "Publish the tables one by one; with manage_publication: true preflight does it",
            )
        if publication.all_tables and publication.via_root:
            yield Finding.warning(
                "publication",
                f'Publication "{publication.name}" is FOR ALL TABLES and publishes partitions as their root: '
                "PostgreSQL crashes (segmentation fault), and again at each run, when it decodes a change made "
                "to a partition during its ALTER TABLE … DETACH PARTITION … CONCURRENTLY",
                "Publish the tables one by one, or FOR TABLES IN SCHEMA; until then detach without CONCURRENTLY",
            )
    yield from _identity_findings(config, matching, publication, facts)


def work_findings(
    config: PipelineConfig,
    publication: Publication | None,
    work: PublicationWork,
    facts: ServerFacts,
    *,
    slot: SlotState | None,
) -> Iterator[Finding]:
    """Findings on the changes that preflight cannot make: because the publication is missing, or a right. `slot` is
    the pipeline's own, None if there is none or somebody else created it."""
    if publication is None:
        yield from _missing_publication(config, work, facts, slot)
    else:
        others = [member.table for member in publication.direct if config.rule(member.table) is None]
        if others and not (config.manage_publication and publication.owned):
            yield Finding.note(
                "publication",
                f'Publication "{publication.name}" also has {listed(others)}, which the file does not name: they are '
                "skipped",
            )
    if work.unpublished:
        yield _unpublished(config, publication, work, facts)


def _unpublished(
    config: PipelineConfig, publication: Publication | None, work: PublicationWork, facts: ServerFacts
) -> Finding:
    name = config.publication
    tables = [table.table for table in work.unpublished]
    if publication is None:
        statement = create_statement(name, tables, server_version=facts.version)
    else:
        statement = add_statement(name, tables)
    if publication is not None and not config.manage_publication:
        return Finding.of_tables(
            "publication",
            tables,
            f'Publication "{name}" lacks {listed(tables)}',
            f"As owner of publication and tables ({publication.owner}): {readable(statement)}",
            bars="joining",
        )
    if publication is not None and not publication.owned:
        return Finding.of_tables(
            "rights",
            tables,
            f'Role {facts.role} does not own publication "{name}" and cannot add {listed(tables)} to it',
            f"ALTER PUBLICATION {quoted(name)} OWNER TO {quoted(facts.role)}, or set manage_publication: false",
            bars="joining",
        )
    owners = sorted({table.owner for table in work.unpublished})
    return Finding.of_tables(
        "rights",
        tables,
        f"Role {facts.role} does not own {listed(tables)}; only an owner adds a table to a publication",
        f"GRANT {', '.join(map(quoted, owners))} TO {quoted(facts.role)}"
        f"{' WITH INHERIT FALSE, SET TRUE' if facts.major >= 16 else ''} (docs/operations.md, Least privilege); or set "
        f"manage_publication: false and as owner run: {readable(statement)}",
        bars="joining",
    )


def _missing_publication(
    config: PipelineConfig, work: PublicationWork, facts: ServerFacts, slot: SlotState | None
) -> Iterator[Finding]:
    name = config.publication
    statement = create_statement(name, work.create, server_version=facts.version) if work.create else None
    if slot is not None:
        yield Finding.error(
            "publication",
            f'Slot "{slot.name}" exists, but publication "{name}" does not: a slot older than its publication cannot '
            "be decoded",
            f"The slot is this pipeline's own: SELECT pg_drop_replication_slot('{slot.name}'); the next preflight "
            "creates the publication, then the slot. What changed meanwhile is gone: start a backfill of the "
            "pipeline's tables",
            Move.BACKFILL,
        )
    elif not config.manage_publication and statement is not None:
        yield Finding.error(
            "publication",
            f'Publication "{name}" does not exist, and the file says manage_publication: false',
            f"As owner of the tables: {readable(statement)}",
        )
    if config.manage_publication and not facts.may_create:
        yield Finding.error(
            "rights",
            f"Role {facts.role} may not create a publication in database {facts.database}",
            f"GRANT CREATE ON DATABASE {quoted(facts.database)} TO the owner of the tables, whom {quoted(facts.role)} "
            "may become (docs/operations.md, Least privilege), or set manage_publication: false and as owner of the "
            "tables run: "
            f"{readable(statement) if statement else 'the statement that preflight then prints'}",
        )


def _alone(statement: str) -> str:
    """A remedy that first offers another publication, since a change of this one would change what its other
    subscribers receive."""
    return (
        f"Name another publication in the pipeline file, and preflight creates it; if nobody else reads it: {statement}"
    )


def _option_findings(config: PipelineConfig, matched: Matching, publication: Publication) -> Iterator[Finding]:
    name = publication.name
    missing = [operation for operation in OPERATIONS if operation not in publication.operations]
    if missing:
        yield Finding.error(
            "publication",
            f'Publication "{name}" does not publish {listed(missing)}: these changes are lost',
            _alone(f"ALTER PUBLICATION {quoted(name)} SET (publish = '{', '.join(OPERATIONS)}')")
            + ", and start a backfill of the tables",
        )
    partitioned = [table.table for table in matched.tables if table.partitioned]
    if partitioned and not publication.via_root:
        yield Finding.of_tables(
            "publication",
            partitioned,
            f'Publication "{name}" publishes the partitions of {listed(partitioned)} as tables of their own',
            _alone(f"ALTER PUBLICATION {quoted(name)} SET (publish_via_partition_root = true)"),
            bars="capture",
        )
    tables = {table.table: table for table in matched.tables}
    for member in publication.direct:
        table = tables.get(member.table)
        if table is None:
            continue
        if member.row_filter is not None:
            yield Finding.note(
                "publication",
                f"{member.table} is published with a row filter: the target has only the rows that pass it",
            )
        if member.columns is None:
            continue
        uncovered = (
            [column.name for column in table.columns if column.name not in member.columns]
            if table.relation.identity == "full"
            else [column for column in table.relation.key if column not in member.columns]
        )
        if uncovered:
            yield Finding.of_tables(
                "publication",
                [member.table],
                f"The column list of {member.table} lacks {listed(uncovered)} of its replica identity: PostgreSQL "
                "refuses the application's own UPDATE and DELETE",
                f"ALTER PUBLICATION {quoted(name)} with a column list that has them, or without one",
                bars="joining",
            )
        else:
            yield Finding.note(
                "publication",
                f"{member.table} is published with a column list: a column added later is not captured until the list "
                "has it",
            )


def _identity_findings(
    config: PipelineConfig, matched: Matching, publication: Publication | None, facts: ServerFacts
) -> Iterator[Finding]:
    """Findings on replica identities: tables that cannot be captured, tables that are captured as history only, and
    tables whose applications are harmed already."""
    for table in matched.tables:
        if table.unlogged:
            continue
        name = qualified(table.table)
        if unpublished := _unpublished_of_key(table, facts, publication):
            remedy = (
                f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX <a unique, not deferrable index on NOT NULL columns "
                "that are not generated>, or leave the table out of the file"
            )
            if facts.major >= 18:
                publishing = f"{quoted(config.publication)} SET (publish_generated_columns = stored)"
                remedy = f"ALTER PUBLICATION {publishing}; or {remedy}"
            yield Finding.of_tables(
                "replica_identity",
                [table.table],
                f"{table.table} cannot be captured: {listed(unpublished)} of its key "
                f"{'is generated and is' if len(unpublished) == 1 else 'are generated and are'} not published, so a "
                "change does not identify its row",
                remedy,
                bars="capture",
            )
            continue
        published = publication is not None and table.table in publication.covered
        reason = table.breaks_updates(_generated_published(facts, publication))
        if reason is None:
            if table.relation.identity == "full" and not table.relation.key:
                yield Finding.note(
                    "replica_identity",
                    f"{table.table} has no usable primary key; under REPLICA IDENTITY FULL its current table is kept "
                    "as a multiset, which costs more",
                )
            continue
        if "generated column" in reason:
            # The application's updates fail once the table is published. Tidemark never publishes such a table, and
            # reports it if somebody else did.
            harm = f"{table.table}: {reason}: PostgreSQL refuses the application's own UPDATE and DELETE " + (
                "now" if published else "once it is published, so it is not captured"
            )
            mending = f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT (with a primary key), or drop the generated column"
            if table.generated("s") and publication is not None:
                publishing = f"{quoted(config.publication)} SET (publish_generated_columns = stored)"
                mending += f", or, as it is a stored one, ALTER PUBLICATION {publishing}"
            if published or table.exact:
                bars: Bars = "nothing" if published else "joining"
                yield Finding.of_tables("replica_identity", [table.table], harm, mending, bars=bars)
            else:
                yield Finding.warning("replica_identity", harm, mending)
            continue
        because = "its primary key is deferrable, which is no replica identity" if table.relation.deferrable else reason
        remedy = (
            f"Add a primary key (not deferrable), or as its owner: ALTER TABLE {name} REPLICA IDENTITY USING INDEX <a "
            f"unique, not deferrable index on NOT NULL columns>, or ALTER TABLE {name} REPLICA IDENTITY FULL"
        )
        if published or table.exact:
            yield Finding.warning(
                "replica_identity",
                f"{table.table} is captured as history only: {because}. While it is published PostgreSQL refuses "
                "UPDATE and DELETE on it; inserts and truncates are captured",
                remedy,
            )
        else:
            yield Finding.warning(
                "replica_identity",
                f"{table.table} fits a pattern but is not captured: {because}, so once published its application's "
                "UPDATE and DELETE would be refused",
                f"{remedy}. If it only grows, name it in the file without a pattern: it is then captured as history "
                "only",
            )


def _unpublished_of_key(table: SourceTable, facts: ServerFacts, publication: Publication | None) -> list[str]:
    """The generated columns of the key that the stream leaves out. Before 18 the stream has no generated columns.
    From 18 on PostgreSQL refuses the application's own UPDATE and DELETE instead. A column list publishes the
    columns that it names."""
    if facts.major >= 18 and (publication is None or publication.generated_columns):
        return []
    members = () if publication is None else publication.direct
    if any(member.table == table.table and member.columns is not None for member in members):
        return []
    return [column for column in table.relation.key if column in table.generated("s")]


def _generated_published(facts: ServerFacts, publication: Publication | None) -> bool:
    """Whether stored generated columns are published or do no harm. Before 18 PostgreSQL does not check for them."""
    return facts.major < 18 or publication is None or publication.generated_columns
