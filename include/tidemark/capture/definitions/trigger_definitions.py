"""Follows the definitions that the source's event trigger writes into the stream (R11).

    a message  ──► the relation's definition from there on, and the values that its older rows have since then
    RELATION   ──► numbers of its columns, by the last message; without a message in this drain, by the last version

A definition that no RELATION message follows before the batch ends becomes a version of its own, because the next drain
does not read the message again. So the last version of a table is the trigger's last definition, if the table's
fingerprint in the ledger was read under the same trigger (`Fingerprint.told`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import asdict, replace

from tidemark.config import PipelineConfig, TableRule
from tidemark.formats.definition import (
    PREFIX,
    DefinedColumn,
    DefinedRelation,
    DroppedRelation,
    Keys,
    RewrittenRelation,
    UnknownDefinition,
    parse,
)
from tidemark.lsn import Lsn
from tidemark.names import TableName
from tidemark.pgoutput.messages import LogicalMessage, RelationMessage
from tidemark.schema.delta_types import PgType
from tidemark.schema.evolution import Difference, Verdict
from tidemark.schema.fingerprint import GENERATED, ColumnPrint, Fingerprint
from tidemark.schema.table import Column, Identity, TableSchema
from tidemark.source.catalogue.catalog import CapturedTable

_IDENTITIES: Final[Mapping[str, Identity]] = {"d": "default", "f": "full", "i": "index", "n": "nothing"}

# Bits of pg_event_trigger_table_rewrite_reason: what an ALTER made of the rows.
_PERSISTENCE: Final = 1
_DEFAULTS: Final = 2
_VALUES: Final = 4

# In `ColumnPrint.missing`, in place of the hash that a fingerprint from the catalogue has.
_TOLD: Final = "told"


@dataclass(slots=True)
class _Relation:
    """What the trigger wrote about one relation in this drain.

    - `first_xid`: the transaction of its first message; `commit_lsn`: the commit of its last one.
    - `reasons`: the bits of all rewrites since the relation's last version.
    - `was_unlogged`: whether the relation had no WAL at some time since then.
    - `missing`: by column number, the default of older rows as the trigger first wrote it.
    - `states`: all definitions of this drain.
    - `written`: the files into which rewrites moved the rows.
    """

    definition: DefinedRelation | None = None
    first_xid: int = 0
    commit_lsn: Lsn = field(default_factory=lambda: Lsn(0))
    reasons: int = 0
    was_unlogged: bool = False
    is_pending: bool = False
    missing: dict[int, DefinedColumn] = field(default_factory=dict)
    states: list[DefinedRelation] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    is_rewritten: bool = False
    filenode_xid: int = 0
    was_truncated: bool = False


class TriggerDefinitions:
    """The trigger's definitions in one drain. Without `keys` there is no trusted trigger, and every message is
    ignored."""

    def __init__(self, keys: Keys | None = None, since_xid: int = 0, publication: str = "") -> None:
        self._keys = keys
        self._since_xid = since_xid
        self._publication = publication
        self._relations: dict[int, _Relation] = {}
        self._doubted: set[int] = set()
        self._all_doubted = False

    @property
    def since(self) -> int:
        """The transaction since which the trusted trigger is unchanged (`Fingerprint.told`); 0 without one."""
        return self._since_xid if self._keys is not None else 0

    def note(self, message: LogicalMessage) -> bool:
        """Take a logical message, and return whether the trigger wrote it."""
        if message.prefix != PREFIX or message.xid is None or message.commit_lsn is None or self._keys is None:
            return False
        if not message.content:
            return True
        if message.xid <= self._since_xid:
            return False
        told = parse(message.content, message.xid, self._keys, self._publication)
        match told:
            case DefinedRelation():
                self._define(told, message.xid, message.commit_lsn)
            case RewrittenRelation():
                for oid in (told.oid, *told.above):
                    relation = self._of(oid)
                    relation.reasons |= told.reasons
                    relation.is_rewritten = True
                    relation.is_pending, relation.commit_lsn = True, message.commit_lsn
            case DroppedRelation():
                self._relations.pop(told.oid, None)
            case UnknownDefinition(oid=None):
                self._all_doubted = True
                self._relations.clear()
            case UnknownDefinition(oid=int(oid)):
                self.doubt(oid)
        return told is not None

    def _of(self, oid: int) -> _Relation:
        return self._relations.setdefault(oid, _Relation())

    def _define(self, told: DefinedRelation, xid: int, commit_lsn: Lsn) -> None:
        relation = self._of(told.oid)
        relation.definition = told
        relation.first_xid = relation.first_xid or xid
        relation.is_pending, relation.commit_lsn = True, commit_lsn
        relation.was_unlogged |= told.persistence != "p"
        relation.states.append(told)
        if relation.is_rewritten:
            relation.written.add(told.filenode)
            relation.is_rewritten = False
        relation.filenode_xid = xid
        there = {column.attnum: column for column in told.columns}
        known = {n: c for n, c in relation.missing.items() if n in there and there[n].type_oid == c.type_oid}
        relation.missing = {**{n: c for n, c in there.items() if c.has_missing}, **known}
        for above in told.above:
            # A root's rows lie in its leaves.
            self._of(above).was_unlogged |= told.persistence != "p"

    def note_truncate(self, oid: int) -> None:
        self._of(oid).was_truncated = True

    def doubt(self, oid: int) -> None:
        """Stop using the trigger's definitions of this relation: it missed a change, or could not describe one."""
        self._relations.pop(oid, None)
        self._doubted.add(oid)

    def is_doubted(self, oid: int) -> bool:
        return self._all_doubted or oid in self._doubted

    def definition(self, oid: int) -> DefinedRelation | None:
        """The relation's last definition in this drain."""
        relation = self._relations.get(oid)
        return None if relation is None else relation.definition

    def gone(self, oid: int) -> set[int]:
        """The numbers of columns that earlier definitions of this drain have and the last one does not."""
        relation = self._relations.get(oid)
        if relation is None or relation.definition is None:
            return set()
        there = {column.attnum for column in relation.definition.columns}
        return {column.attnum for told in relation.states for column in told.columns} - there

    def pending(self, end_lsn: Lsn) -> list[int]:
        """The relations whose definition changed after their last RELATION message, with all changes committed before
        this LSN."""
        return [oid for oid, one in self._relations.items() if one.is_pending and one.commit_lsn < end_lsn]

    def settled(self, oid: int) -> None:
        """A version of the relation contains every definition up to now."""
        relation = self._relations.get(oid)
        if relation is not None:
            relation.is_pending, relation.reasons, relation.was_unlogged = False, 0, False

    # --- what a definition means --------------------------------------------------------------------------------------

    def captured(
        self, relation: RelationMessage, rule: TableRule, known: CapturedTable | None, latest: TableSchema | None
    ) -> CapturedTable | None:
        """The table as the trigger defined it, with a message's columns as the published ones. None if the trigger
        wrote nothing, or if the message does not match the definition."""
        told = self.definition(relation.relation_oid)
        if told is None:
            return None
        columns = {column.name: column for column in told.columns}
        sent = [columns.get(column.name) for column in relation.columns]
        follows = [
            (column.type_oid, column.typmod) == (definition.type_oid, definition.typmod)
            for column, definition in zip(relation.columns, sent, strict=True)
            if definition is not None
        ]
        numbers = [column.attnum for column in sent if column is not None]
        if len(follows) < len(sent) or not all(follows) or numbers != sorted(numbers):
            return None
        if _IDENTITIES.get(told.identity) != relation.identity:
            return None
        return self._table(relation.table, told, rule, tuple(c.name for c in relation.columns), known, latest)

    def captured_without_message(self, known: CapturedTable, latest: TableSchema | None) -> CapturedTable | None:
        """As `captured`, without a message; `known` is the table in the catalogue."""
        told = self.definition(known.relation_oid)
        if told is None:
            return None
        published = [
            c.name
            for c in told.columns
            if (c.attnum in told.listed if told.listed is not None else not c.generated or c.name in _generated(known))
        ]
        return self._table(known.table, told, known.rule, tuple(published), known, latest)

    def _table(
        self,
        table: TableName,
        told: DefinedRelation,
        rule: TableRule,
        published: tuple[str, ...],
        known: CapturedTable | None,
        latest: TableSchema | None,
    ) -> CapturedTable:
        names = {column.attnum: column.name for column in told.columns}
        prints = {} if known is None else {column.attnum: column for column in known.columns}
        before = {} if latest is None else {column.attnum: column for column in latest.columns if column.attnum}
        missing = self._relations[told.oid].missing
        columns = tuple(
            replace(
                _print(
                    c,
                    missing.get(c.attnum),
                    before.get(c.attnum),
                    prints.get(c.attnum) if told.relkind == "p" else None,
                ),
                dimensions=None if (seen := prints.get(c.attnum)) is None else seen.dimensions,
            )
            for c in told.columns
        )
        return CapturedTable(
            table=table,
            relation_oid=told.oid,
            kind=told.relkind,
            rule=rule,
            identity=_IDENTITIES[told.identity],
            key=tuple(names[number] for number in told.key if number in names),
            columns=columns,
            published=True,
            published_columns=published,
            row_filter=None if known is None else known.row_filter,
            called=TableName(told.schema, told.name),
        )

    def types(self, oid: int) -> dict[int, PgType]:
        """The types of the relation's columns that are not built in."""
        told = self.definition(oid)
        return {t.oid: PgType(**asdict(t)) for t in (() if told is None else told.types)}

    def older_values(
        self, oid: int, shape: TableSchema, latest: TableSchema | None, recorded: Fingerprint | None
    ) -> list[Difference]:
        """Differences in older rows since the previous version that no change and no default contains. `recorded` is
        the table's fingerprint in the ledger."""
        relation = self._relations.get(oid)
        if relation is None or latest is None:
            return []
        differences = []
        if relation.was_unlogged or relation.reasons & _PERSISTENCE:
            reason = "the table was UNLOGGED for a while: what it got then is in no stream"
            differences.append(Difference(Verdict.NEEDS_BACKFILL, reason))
        if relation.reasons & _VALUES:
            reason = "ALTER TABLE wrote the values of a column anew, and USING may have changed them"
            differences.append(Difference(Verdict.NEEDS_BACKFILL, reason))
        elif relation.reasons & _DEFAULTS:
            generated = {c.attnum for c in relation.definition.columns if c.generated} if relation.definition else set()
            before = {column.attnum for column in latest.columns}
            numbers = tuple(
                column.attnum
                for column in shape.columns
                if column.attnum in generated or (column.missing is None and column.attnum not in before)
            )
            reason = "ALTER TABLE gave all rows a value in a column that it added, or in a generated one"
            if numbers:
                differences.append(Difference(Verdict.NEEDS_BACKFILL, reason, numbers))
        published = {column.attnum for column in latest.columns}
        unpublished = _unpublished(relation, recorded if recorded and recorded.relation_oid == oid else None)
        if numbers := tuple(c.attnum for c in shape.columns if c.attnum in unpublished and c.attnum not in published):
            reason = "a generated column became an ordinary one, and what its older rows have is in no stream"
            differences.append(Difference(Verdict.NEEDS_BACKFILL, reason, numbers))
        return differences

    # --- the heartbeat ------------------------------------------------------------------------------------------------

    def agrees(self, before: Fingerprint, fingerprint: Fingerprint, version: TableSchema | None) -> bool:
        """Whether a fingerprint matches the trigger's messages. Its definition has to be one of this drain or the last
        version from before, and its rows have to lie in a known file: the previous one, or that of a reported rewrite
        or a TRUNCATE."""
        oid = fingerprint.relation_oid
        if self.is_doubted(oid):
            return False
        relation = self._relations.get(oid, _Relation())
        is_known = any(_is_at(fingerprint, told) for told in relation.states) or (
            version is not None and _has_version(fingerprint, version)
        )
        filenodes = {fingerprint.relfilenode, *(told.filenode for told in relation.states)}
        return is_known and (relation.was_truncated or filenodes <= {before.relfilenode, *relation.written})

    def has_all_of(self, oid: int, made_by: int, config: PipelineConfig) -> bool:
        """Whether this drain has all rows of the relation, from its creation by the transaction `made_by` on. The file
        has to name it under each of its names, and it must never have been a partition or UNLOGGED. `catalog.made_by`
        leaves out tables that were ever in another schema: the trigger writes nothing about a table while its schema is
        not published."""
        relation = self._relations.get(oid)
        if relation is None or self.is_doubted(oid) or relation.first_xid != made_by:
            return False
        return len({told.schema for told in relation.states}) == 1 and all(
            told.persistence == "p" and not told.above and config.rule(TableName(told.schema, told.name)) is not None
            for told in relation.states
        )

    def with_storage(self, fingerprint: Fingerprint, seen_below: int) -> int:
        """The file that holds the rows once this drain's changes are staged: the fingerprint's, unless a later
        definition has another one."""
        relation = self._relations.get(fingerprint.relation_oid)
        if relation is None or relation.definition is None or relation.filenode_xid < seen_below:
            return fingerprint.relfilenode
        return relation.definition.filenode


def _unpublished(relation: _Relation, recorded: Fingerprint | None) -> set[int]:
    """The numbers of columns that were generated earlier in this drain, or may have been so before it. The fingerprint
    has no numbers of columns that are not captured, and a rename in this drain may have changed their names."""
    numbers = {column.attnum for told in relation.states for column in told.columns if column.generated}
    if recorded is not None and any(column.why == GENERATED for column in recorded.uncaptured):
        numbers |= {*range(1, recorded.last_attnum + 1)} - {column.attnum for column in recorded.columns}
    return numbers


def _generated(known: CapturedTable) -> set[str]:
    return {column.name for column in known.columns if column.generated} & {*known.published_columns}


def _print(
    told: DefinedColumn, missing: DefinedColumn | None, before: Column | None, of_root: ColumnPrint | None
) -> ColumnPrint:
    """The column with the default that older rows have in it. The first known default stays, even if a rewrite removes
    it from the catalogue. Defaults of a root stand with its leaves, so they come from the catalogue."""
    default = missing.missing if missing is not None else None
    has_missing = missing is not None
    if before is not None and before.missing is not None and before.type_oid == told.type_oid:
        default, has_missing = before.missing, True
    if of_root is not None and of_root.missing is not None:
        default, has_missing = of_root.default, True
    return ColumnPrint(
        attnum=told.attnum,
        name=told.name,
        type_oid=told.type_oid,
        typmod=told.typmod,
        not_null=told.not_null,
        generated=told.generated,
        missing=_TOLD if has_missing else None,
        xmin=0,
        default=default,
    )


def _is_at(fingerprint: Fingerprint, told: DefinedRelation) -> bool:
    columns = {c.attnum: (c.name, c.type_oid, c.typmod) for c in told.columns}
    names = {c.attnum: c.name for c in told.columns}
    key = tuple(names.get(number, "") for number in told.key)
    return _has_columns(fingerprint, columns) and (fingerprint.identity, fingerprint.key) == (
        _IDENTITIES.get(told.identity),
        key,
    )


def _has_version(fingerprint: Fingerprint, version: TableSchema) -> bool:
    columns = {c.attnum: (c.name, c.type_oid, c.typmod) for c in version.columns}
    is_same = version.relation_oid == fingerprint.relation_oid and bool(version.published)
    return (
        is_same
        and _has_columns(fingerprint, columns)
        and (fingerprint.identity, fingerprint.key) == (version.identity, version.key)
    )


def _has_columns(fingerprint: Fingerprint, columns: Mapping[int, tuple[str, int, int]]) -> bool:
    seen = {c.attnum: (c.name, c.type_oid, c.typmod) for c in fingerprint.columns}
    is_seen = all(columns.get(number) == column for number, column in seen.items())
    gone = {number for number, _ in fingerprint.dropped}
    return is_seen and gone.isdisjoint(columns) and max(columns, default=0) <= fingerprint.last_attnum
