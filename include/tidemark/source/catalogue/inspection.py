"""Checks server, role, tables and slot of the source: facts -> findings, in one pure function each.

`read_server_facts` reads the server in one statement, `source.catalogue.source_tables` reads the tables and
`source.wal.slot` the slot. `source.catalogue.publication_findings` checks the publication. Every finding has the facts
and the SQL of its remedy. Nothing here changes the source (R9). Source: PostgreSQL documentation, 47.2 "Logical
Decoding Concepts", 29.12 "Configuration Settings" (of logical replication).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark.config import PipelineConfig, split_pattern
from tidemark.config.schedule import longest_gap_s
from tidemark.errors import Move
from tidemark.findings import Bars, Finding, listed
from tidemark.names import TableName, alike, is_reserved
from tidemark.postgres.postgres_session import one_row
from tidemark.source.catalogue import providers
from tidemark.source.catalogue.identifiers import qualified, quoted
from tidemark.source.catalogue.providers import Service
from tidemark.source.catalogue.publication import may_become
from tidemark.source.catalogue.source_tables import Matching, SourceTable
from tidemark.source.wal.slot import SlotState
from tidemark.wording import TABLE_CUTOFF, closest, duration, plural

OLDEST_VERSION: Final = 15
NEWEST_VERSION: Final = 18
FLOOR_VERSION: Final = 19
_MIB: Final = 2**20

# A table's present name, and the former name of a column that the file masks or leaves out.
Entry = tuple[TableName, str]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about the server and the session's role. `slot_wal_keep_bytes` and `idle_slot_timeout_s` are None if
    the server sets no limit. By default every login may write logical messages (`anybody_writes_messages`)."""

    version: int
    database: str
    standby: bool
    wal_level: str
    slots: int
    max_slots: int
    senders: int
    max_senders: int
    role: str
    replication: bool
    may_create: bool
    synchronous_standby_names: str
    slot_wal_keep_bytes: int | None
    idle_slot_timeout_s: int | None
    encoding: str = "UTF8"
    anybody_writes_messages: bool = False
    service: Service | None = None

    @property
    def has_logical_wal(self) -> bool:
        """Whether the server can decode logically. From 19 on wal_level is a minimum: the first logical slot raises
        the effective level (effective_wal_level)."""
        return self.wal_level == "logical" or (self.major >= FLOOR_VERSION and self.wal_level == "replica")

    @property
    def major(self) -> int:
        return self.version // 10000


def read_server_facts(connection: psycopg.Connection[Any]) -> ServerFacts:
    statement = sql.SQL(
        """
        SELECT current_setting('server_version_num')::int, current_database()::text, pg_is_in_recovery(),
               current_setting('wal_level'),
               (SELECT count(*)::int FROM pg_replication_slots), current_setting('max_replication_slots')::int,
               (SELECT count(*)::int FROM pg_stat_replication), current_setting('max_wal_senders')::int,
               current_user::text,
               (SELECT r.rolsuper OR r.rolreplication FROM pg_roles r WHERE r.rolname = current_user)
               OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'rds_replication'
                          AND pg_has_role(r.oid, 'USAGE')),
               EXISTS (SELECT FROM pg_roles r WHERE has_database_privilege(r.oid, current_database(), 'CREATE')
                          AND (r.rolname = current_user OR NOT r.rolsuper AND {may_become})),
               current_setting('synchronous_standby_names'),
               (SELECT s.setting::bigint FROM pg_settings s WHERE s.name = 'max_slot_wal_keep_size'),
               (SELECT s.setting::bigint * CASE s.unit WHEN 'min' THEN 60 WHEN 'ms' THEN 0.001 ELSE 1 END
                  FROM pg_settings s WHERE s.name = 'idle_replication_slot_timeout')::bigint,
               getdatabaseencoding()::text,
               EXISTS (SELECT FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                        WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::regnamespace
                          AND a.grantee = 0)
        """
    ).format(may_become=may_become(connection, "r.oid"))
    facts: list[Any] = list(one_row(connection, statement))
    keep_mib, idle_s = facts[-4:-2]
    facts[-4:-2] = [None if keep_mib is None or keep_mib < 0 else keep_mib * _MIB, idle_s or None]
    return replace(ServerFacts(*facts), service=providers.read_service(connection))


# --- server and role --------------------------------------------------------------------------------------------------


def server_findings(facts: ServerFacts, config: PipelineConfig, *, slot: SlotState | None) -> Iterator[Finding]:
    """Findings on version, wal_level, free slots and senders, synchronous replication, and the limits that
    invalidate slots."""
    if facts.major < OLDEST_VERSION:
        yield Finding.error(
            "version",
            f"The source is PostgreSQL {facts.major}; Tidemark reads {OLDEST_VERSION} to {NEWEST_VERSION}",
            f"Upgrade the source to PostgreSQL {OLDEST_VERSION} or newer",
        )
    elif facts.major > NEWEST_VERSION:
        yield Finding.warning(
            "version",
            f"The source is PostgreSQL {facts.major}; Tidemark was tried on {OLDEST_VERSION} to {NEWEST_VERSION}",
            "Install a newer Tidemark that names this version, if there is one",
        )
    if facts.standby:
        yield Finding.error(
            "standby",
            "The source is a standby (pg_is_in_recovery); chunks and heartbeats need the primary",
            f"Point connection {config.source_connection} at the primary",
            Move.FIX_CONFIG,
        )
    provider = facts.service.provider if facts.service else None
    if not facts.has_logical_wal:
        yield Finding.error(
            "wal_level",
            f"wal_level is {facts.wal_level}; changes are only decoded from wal_level logical",
            provider.wal_level if provider else "ALTER SYSTEM SET wal_level = logical; then restart the server",
        )
    if slot is None and facts.slots >= facts.max_slots:
        yield Finding.error(
            "slots",
            f"All {facts.max_slots} replication slots of the server are in use",
            "Raise max_replication_slots and restart, or have whoever owns one that is not needed any more drop it "
            "(SELECT * FROM pg_replication_slots)",
        )
    if facts.senders >= facts.max_senders and (slot is None or slot.active_pid is None):
        yield Finding.error(
            "senders",
            f"All {facts.max_senders} WAL senders of the server are in use",
            "Raise max_wal_senders and restart, or end a connection of pg_stat_replication that nobody needs",
        )
    if not facts.replication:
        yield Finding.error(
            "role",
            f"Role {facts.role} may not use replication",
            (provider.replication if provider else "ALTER ROLE {role} REPLICATION").format(role=quoted(facts.role)),
        )
    trapped = _synchronous_name(facts.synchronous_standby_names, config.application_name)
    if trapped is not None:
        yield Finding.error(
            "synchronous_standby_names",
            f"synchronous_standby_names ({facts.synchronous_standby_names}) has {trapped}, which takes the drain's "
            f"connection ({config.application_name}) for a synchronous standby: the application's commits would wait "
            "for it",
            "Name the real standbys in synchronous_standby_names, so that it leaves out every application_name that "
            "begins with tidemark_",
        )
    if facts.service is not None:
        gap = longest_gap_s(config.schedule)
        yield from providers.service_findings(facts.service, wal_level=facts.wal_level, longest_gap_s=gap)
    yield from _message_findings(facts)
    yield from _limit_findings(facts, config)


def _message_findings(facts: ServerFacts) -> Iterator[Finding]:
    """A warning about logical messages that end the stream. The server converts a message's prefix to UTF-8 before
    it sends it. If it cannot, the stream ends at that message every time. Only UTF-8 and SQL_ASCII need no
    conversion."""
    if facts.anybody_writes_messages and facts.encoding not in ("UTF8", "SQL_ASCII"):
        yield Finding.warning(
            "messages",
            f"Every login of this {facts.encoding} database may write a logical message whose prefix cannot be "
            "converted to UTF-8, and PostgreSQL could not stream past it",
            "Revoke EXECUTE on pg_logical_emit_message from PUBLIC, and grant it to role "
            f"{quoted(facts.role)}: docs/operations.md, Least privilege, has the statements",
        )


def _limit_findings(facts: ServerFacts, config: PipelineConfig) -> Iterator[Finding]:
    """Compares max_slot_wal_keep_size with the valve, and idle_replication_slot_timeout with the schedule."""
    keep, valve = facts.slot_wal_keep_bytes, config.bounds.wal_valve_bytes
    if keep is None:
        yield Finding.note(
            "max_slot_wal_keep_size",
            f"The server sets no limit to the WAL that a slot keeps; the drain confirms early from {_size(valve)} on, "
            "but while no DAG runs the source's disk fills",
            "Set max_slot_wal_keep_size above wal_valve_bytes if an idle Airflow must not endanger the source",
        )
    elif keep <= valve:
        yield Finding.warning(
            "max_slot_wal_keep_size",
            f"max_slot_wal_keep_size ({_size(keep)}) is not above wal_valve_bytes ({_size(valve)}): PostgreSQL "
            "invalidates the slot before the drain's valve opens",
            f"Set bounds.wal_valve_bytes to {keep // 2} or less, or raise max_slot_wal_keep_size",
            Move.FIX_CONFIG,
        )
    idle, gap = facts.idle_slot_timeout_s, longest_gap_s(config.schedule)
    if idle is None:
        return
    if gap is None:
        yield Finding.warning(
            "idle_replication_slot_timeout",
            f"PostgreSQL invalidates a slot that is idle for {duration(idle)}, and the schedule does not say how often "
            "the DAG runs",
            "Run the DAG more often than that, or set idle_replication_slot_timeout = 0",
        )
    elif gap * 2 > idle:
        yield Finding(
            "error" if gap >= idle else "warning",
            "idle_replication_slot_timeout",
            f"PostgreSQL invalidates a slot that is idle for {duration(idle)} (idle_replication_slot_timeout), and by "
            f"the schedule up to {duration(gap)} pass between two runs"
            + ("" if gap >= idle else ": one failed run is enough"),
            f"Raise idle_replication_slot_timeout above {duration(gap * 3)} (0 switches it off), or schedule the DAG "
            "more often",
        )


def _synchronous_name(setting: str, application_name: str) -> str | None:
    """The entry of the list that fits the pipeline's own connections, "*" or their name; None if no entry does."""
    inner = re.sub(r"^\s*(?:(?:FIRST|ANY)\s+)?\d+\s*\(|\)\s*$", "", setting, flags=re.IGNORECASE)
    for entry in re.findall(r'"(?:[^"]|"")*"|[^,\s]+', inner):
        name = entry[1:-1].replace('""', '"') if entry.startswith('"') else entry
        if name == "*" or name.lower() == application_name.lower():
            return f'"{name}"'
    return None


# --- tables -----------------------------------------------------------------------------------------------------------


def table_findings(
    matching: Matching, config: PipelineConfig, facts: ServerFacts, followed: Collection[Entry] = ()
) -> Iterator[Finding]:
    """Compares the file with the source: missing and unfit tables, columns, keys, rights to read. `followed` are
    masked or left-out columns that were renamed since, by the name in the file: their guard stays with them."""
    yield from _selection_findings(matching)
    for table in matching.tables:
        yield from _column_findings(table, config, followed)
        yield from _partition_findings(table)
    yield from _pattern_findings(matching, config, followed)
    for group in alike(str(table.table) for table in matching.tables):
        yield Finding.warning(
            "names",
            f"The names of {listed(group)} differ only in case; a catalogue or file system that ignores case mixes "
            "them up",
            "Rename one of them, or leave it out of the file",
        )
    unreadable = [table.table for table in matching.tables if not table.readable]
    if unreadable:
        schemas = sorted({table.schema for table in unreadable})
        tables = ", ".join(qualified(table) for table in unreadable)
        yield Finding.of_tables(
            "rights",
            unreadable,
            f"Role {facts.role} may not read {listed(unreadable)}, so no backfill can; a table is not captured before "
            "it may be read",
            f"GRANT USAGE ON SCHEMA {', '.join(map(quoted, schemas))} TO {quoted(facts.role)}; "
            f"GRANT SELECT ON {tables} TO {quoted(facts.role)}",
            bars="joining",
        )
    secured = [table.table for table in matching.tables if table.row_security]
    if secured:
        yield Finding.warning(
            "row_security",
            f"Row-level security hides rows of {listed(secured)} from role {facts.role}: changes are captured all the "
            "same, but a backfill cannot read them",
            f"ALTER ROLE {quoted(facts.role)} BYPASSRLS",
        )


def _selection_findings(matched: Matching) -> Iterator[Finding]:
    names = {f"{name.schema}.{name.name}": name for name in matched.names}
    written = {f"{source.table.schema}.{source.table.name}" for source in matched.tables if source.exact}
    for rule in matched.unmatched:
        if rule.exact:
            meant = closest(rule.pattern, names, taken=written, cutoff=TABLE_CUTOFF)
            (schema, _), (name, _) = split_pattern(rule.pattern)
            yield Finding.of_tables(
                "tables",
                [TableName(schema, name)],
                f"Table {rule.pattern} (line {rule.line} of the file) does not exist at the source",
                f"Did you mean {meant}?" if meant else "Correct the name, or create the table",
                bars="capture",
                move=Move.FIX_CONFIG,
            )
        else:
            yield Finding.warning(
                "tables",
                f"No table matches the pattern {rule.pattern} (line {rule.line} of the file)",
                "Correct the pattern, or take it out",
                Move.FIX_CONFIG,
            )
    for table, exact, reason in matched.refused:
        if exact:
            yield Finding.of_tables(
                "tables",
                [table],
                f"{table} cannot be captured: {reason}",
                "Take it out of `tables` in the pipeline file, or name another table",
                bars="capture",
                move=Move.FIX_CONFIG,
            )
    for source_table in matched.tables:
        if not source_table.unlogged:
            continue
        message = f"{source_table.table} is unlogged, so its changes are not in the WAL: it is not captured"
        remedy = f"ALTER TABLE {qualified(source_table.table)} SET LOGGED"
        if source_table.partitioned:  # before 18 PostgreSQL accepts that statement, and does nothing
            remedy = "Create it anew without UNLOGGED, and attach its partitions to the new one"
        if source_table.exact:
            yield Finding.of_tables("tables", [source_table.table], message, remedy, bars="capture")
        else:
            yield Finding.warning("tables", message, remedy)


def _pattern_findings(matched: Matching, config: PipelineConfig, followed: Collection[Entry]) -> Iterator[Finding]:
    """Findings on columns that a pattern masks or leaves out. Such a column may be missing in some tables of the
    pattern, but not in all: then it is misspelt, or it was renamed before the pipeline first read it. Tables that
    are captured already stay captured."""
    for entry in config.tables:
        if entry.exact or not (entry.leave_out or entry.mask):
            continue
        tables = [table for table in matched.tables if entry.matches(table.table)]
        if not tables:
            continue
        columns = {column.name for table in tables for column in table.columns}
        columns |= {column for table, column in followed if entry.matches(table)}
        for column in (*entry.leave_out, *entry.mask):
            if column in columns:
                continue
            meant = closest(column, columns, taken=(*entry.leave_out, *entry.mask))
            yield Finding.of_tables(
                "columns",
                [table.table for table in tables],
                f"No table of {entry.pattern} has a column {column!r}, which line {entry.line} of the file masks or "
                "leaves out",
                f"Did you mean {meant!r}?" if meant else "Correct the name, or take it out",
                bars="joining",
                move=Move.FIX_CONFIG,
            )


def _column_findings(table: SourceTable, config: PipelineConfig, followed: Collection[Entry]) -> Iterator[Finding]:
    name, rule, types = table.table, table.rule, {column.name: column.type for column in table.columns}

    def wrong(check: str, message: str, remedy: str, bars: Bars = "joining", move: Move = Move.FIX_CONFIG) -> Finding:
        return Finding.of_tables(check, [name], message, remedy, bars=bars, move=move)

    for conflict in config.conflicts(name):
        yield wrong(
            "tables", f"The file contradicts itself: {conflict}", "Take one of the two out of the file", "capture"
        )
    for entry in config.entries(name):
        if not entry.exact:
            continue
        for column in (*entry.leave_out, *entry.mask, *entry.target):
            if column not in types:
                if (name, column) in followed:
                    continue
                meant = closest(column, types, taken=(*rule.leave_out, *rule.mask, *rule.target))
                yield wrong(
                    "columns",
                    f"{name} has no column {column!r} (line {entry.line} of the file)",
                    f"Did you mean {meant!r}?" if meant else "Correct the name",
                    "joining" if column in entry.target else "capture",
                )
    key = set(table.relation.key)
    for column in sorted(key & {*rule.mask, *rule.leave_out}):
        yield wrong(
            "columns",
            f"{column!r} belongs to the key of {name} and is {'masked' if column in rule.mask else 'left out'}: two "
            "rows could become one",
            "Take it out of mask and leave_out",
            "capture",
        )
    for column, target in rule.target.items():
        if target.startswith("decimal") and not types.get(column, "numeric").startswith("numeric"):
            yield wrong(
                "columns",
                f"{column!r} of {name} is {types[column]}; only numeric can become {target}",
                "Take the target out, or set it to text",
            )
    captured = [column.name for column in table.captured_columns]
    if not captured:
        yield wrong("columns", f"{name} has no column to capture", "Add one, or leave fewer of them out")
    for group in alike(captured):
        yield wrong(
            "columns",
            f"The columns {listed(group)} of {name} differ only in case, and Delta ignores case",
            "Leave all but one of them out (leave_out), or rename them",
            move=Move.FIX_SOURCE,
        )
    for column in captured:
        if is_reserved(column):
            yield wrong(
                "columns",
                f"{column!r} of {name} is a name that Tidemark or Spark uses itself",
                "Leave it out (leave_out), or rename it",
                move=Move.FIX_SOURCE,
            )


def _partition_findings(table: SourceTable) -> Iterator[Finding]:
    if not table.partitioned:
        return
    root = table.relation
    remedies = {
        "a foreign table": f"ALTER TABLE {qualified(root.table)} DETACH PARTITION {{leaf}}",
        "unlogged": "ALTER TABLE {leaf} SET LOGGED",
    }
    for without_wal, remedy in remedies.items():
        leaves = [leaf.table for leaf in table.leaves_without_wal if leaf.without_wal == without_wal]
        if leaves:
            yield Finding.of_tables(
                "partitions",
                [root.table],
                f"{plural(len(leaves), 'Partition')} {listed(leaves)} of {root.table} {plural(len(leaves), 'is')} "
                f"{without_wal}: changes of such a partition are not in this server's WAL",
                "; ".join(remedy.format(leaf=qualified(leaf)) for leaf in leaves),
                bars="capture",
            )
    differing = [
        leaf for leaf in table.leaves if leaf.kind != "f" and not _same_identity(leaf.identity, leaf.key, root)
    ]
    if differing:
        yield Finding.of_tables(
            "replica_identity",
            [root.table],
            f"The replica identity of {listed(leaf.table for leaf in differing)} differs from that of the root "
            f"{root.table} ({root.identity}{' on ' + ', '.join(root.key) if root.key else ''})",
            "; ".join(
                f"ALTER TABLE {qualified(leaf.table)} REPLICA IDENTITY "
                + {
                    "full": "FULL",
                    "default": "DEFAULT",
                    "nothing": "NOTHING",
                    "index": "USING INDEX <its index of that key>",
                }[root.identity]
                for leaf in differing
            ),
            bars="capture",
        )
    yield Finding.note(
        "partitions",
        f"A TRUNCATE of one partition of {root.table} is not replicated; a TRUNCATE of {root.table} itself is",
        "Use DELETE, or detach and drop the partition and run a backfill",
    )


def _same_identity(identity: str, key: tuple[str, ...], root: Any) -> bool:
    return bool(identity == root.identity and key == root.key)


# --- slot -------------------------------------------------------------------------------------------------------------


def has_tables(connection: psycopg.Connection[Any]) -> bool:
    """Whether the database has any table that is not PostgreSQL's own."""
    row = connection.execute(
        """
        SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p', 'f') AND c.relpersistence <> 't'
           AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') LIMIT 1
        """
    ).fetchone()
    return row is not None


def slot_findings(slot: SlotState) -> Iterator[Finding]:
    """Warns that a usable slot is about to be lost. `source.wal.slot.usable` checks plugin, state and kind before
    this."""
    if slot.wal_status == "unreserved":
        left = "" if slot.safe_wal_size is None else f" ({_size(max(slot.safe_wal_size, 0))} of WAL are left)"
        yield Finding.warning(
            "slot",
            f'Slot "{slot.name}" has fallen behind max_slot_wal_keep_size and is about to be lost{left}',
            "Let the drain run now; raise max_slot_wal_keep_size, or run the DAG more often",
        )
    elif (
        slot.wal_status == "extended"
        and slot.safe_wal_size is not None
        and slot.safe_wal_size < slot.retained_bytes // 4
    ):
        yield Finding.warning(
            "slot",
            f'Slot "{slot.name}" keeps {_size(slot.retained_bytes)} of WAL; {_size(slot.safe_wal_size)} more and it is '
            "lost",
            "Raise max_slot_wal_keep_size, or run the DAG more often",
        )


# --- wording ----------------------------------------------------------------------------------------------------------


def _size(number: int) -> str:
    value = float(number)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if value >= 10 or unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{number} bytes"
