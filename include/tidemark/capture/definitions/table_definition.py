"""Builds the captured shape of a table from a RELATION message, or from the catalogue, and the file's rules.

Columns come from the message. The catalogue has the types behind the OIDs, the order of the key's columns, and the
primary key under FULL. The previous version has what is gone from the catalogue: a dropped type, the key's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from msgspec.structs import replace

from tidemark.config import TableRule
from tidemark.names import folded_names, is_reserved
from tidemark.pgoutput.messages import RelationColumn, RelationMessage
from tidemark.schema.delta_types import PgType, target_type, type_name
from tidemark.schema.fingerprint import ColumnPrint
from tidemark.schema.postgres_types import target_of
from tidemark.schema.table import Column, TableSchema
from tidemark.schema.values import convert
from tidemark.source.catalogue.catalog import CapturedTable


@dataclass(frozen=True, slots=True)
class Catalog:
    """One reading of the catalogue: tables by OID, types by OID. It contains every transaction with an id below
    `seen_below`."""

    tables: Mapping[int, CapturedTable]
    types: Mapping[int, PgType]
    seen_below: int = 0


def define(
    relation: RelationMessage, rule: TableRule, catalog: Catalog, latest: TableSchema | None
) -> tuple[TableSchema, list[str]]:
    """A relation's captured shape, without a version number, and the reasons why parts of it cannot be captured."""
    columns: list[Column] = []
    unfit: list[str] = []
    names_taken: set[str] = set()
    for sent in relation.columns:
        if sent.name in rule.leave_out:
            continue
        if is_reserved(sent.name) or not names_taken.isdisjoint(folded_names(sent.name)):
            unfit.append(f'column "{sent.name}" has a name that the target already uses')
            continue
        names_taken.update(folded_names(sent.name))
        column, refused = _column(sent, rule, catalog.types, latest)
        columns.append(column)
        unfit += refused
    key = _key(relation, catalog.tables.get(relation.relation_oid), latest)
    captured = {column.name for column in columns}
    missing = [name for name in key if name not in captured]
    if missing:
        unfit.append(f"the key's columns {', '.join(missing)} are left out")
        key = ()
    if not columns:
        unfit.append("no column of it is captured")
    columns = [_in_key(column) if column.name in key else column for column in columns]
    shape = TableSchema(relation.table, 0, relation.relation_oid, relation.identity, key, tuple(columns))
    return nested_as_text(shape, catalog.tables.get(relation.relation_oid), latest), unfit


def nested_as_text(shape: TableSchema, captured: CapturedTable | None, latest: TableSchema | None) -> TableSchema:
    """The shape with text in place of arrays that were declared with more than one dimension, since Delta's array type
    holds no nested values. A column that was captured as an array stays one: PostgreSQL does not enforce the declared
    dimensions. A dropped column keeps its captured type."""
    seen = {} if captured is None else {(c.name, c.type_oid): c.dimensions for c in captured.columns}
    before = {} if latest is None else {(c.name, c.type_oid, c.typmod): c.target for c in latest.columns}

    def is_nested(column: Column) -> bool:
        dimensions = seen.get((column.name, column.type_oid))
        known = before.get((column.name, column.type_oid, column.typmod))
        return known == "string" if dimensions is None else dimensions > 1 and known in (None, "string")

    columns = tuple(
        replace(c, target="string") if c.target.startswith("array<") and is_nested(c) else c for c in shape.columns
    )
    return shape if columns == shape.columns else replace(shape, columns=columns)


def catalogue_shape(
    captured: CapturedTable, types: Mapping[int, PgType], latest: TableSchema | None
) -> tuple[TableSchema, list[str]]:
    """As `define`, for a table as the catalogue has it, with column numbers."""
    names = {column.name for column in captured.captured_columns}
    columns = [c for c in captured.columns if c.name in captured.published_columns or c.name in names]
    relation = RelationMessage(
        captured.relation_oid,
        captured.table,
        captured.identity,
        tuple(
            RelationColumn(c.name, c.type_oid, c.typmod, captured.identity == "full" or c.name in captured.key)
            for c in columns
        ),
    )
    shape, unfit = define(relation, captured.rule, Catalog({captured.relation_oid: captured}, types), latest)
    return numbered(shape, relation, [c.attnum for c in columns], {c.attnum: c for c in captured.columns}), unfit


def numbered(
    shape: TableSchema, relation: RelationMessage, numbers: Sequence[int], prints: Mapping[int, ColumnPrint]
) -> TableSchema:
    """The shape of a message with the given column numbers, and the catalogue's default of each column."""
    attnums = {column.name: attnum for column, attnum in zip(relation.columns, numbers, strict=True)}
    columns = tuple(
        replace(c, attnum=attnums[c.name], missing=_missing(c, prints.get(attnums[c.name]))) for c in shape.columns
    )
    return replace(shape, columns=columns, published=tuple(numbers))


def _missing(column: Column, seen: ColumnPrint | None) -> str | None:
    """The default that older rows have in the column. None if the column is masked or if the default does not fit the
    target's type."""
    if seen is None or seen.default is None or column.mask is not None or target_of(column.target).codec == "hstore":
        return None
    return seen.default if convert(pa.array([seen.default], pa.string()), column.target).kept is None else None


def _in_key(column: Column) -> Column:
    """The column as text if Spark cannot compare its type."""
    return column if target_of(column.target).in_keys else replace(column, target="string")


def _column(
    sent: RelationColumn, rule: TableRule, types: Mapping[int, PgType], latest: TableSchema | None
) -> tuple[Column, list[str]]:
    mask = rule.mask.get(sent.name)
    if sent.type_oid not in types and latest is not None:
        # The type is gone from the catalogue, and the stream is older: what was known of it still holds.
        for older in latest.columns:
            if (older.name, older.type_oid, older.typmod, older.mask) == (sent.name, sent.type_oid, sent.typmod, mask):
                return older, []
    refused = []
    override = rule.target.get(sent.name)
    try:
        target = target_type(sent.type_oid, sent.typmod, types, override)
    except ValueError as wrong:
        refused.append(f'column "{sent.name}" cannot be stored as the pipeline file says: {wrong}')
        target = target_type(sent.type_oid, sent.typmod, types)
    return (
        Column(
            name=sent.name,
            type=type_name(sent.type_oid, sent.typmod, types),
            type_oid=sent.type_oid,
            typmod=sent.typmod,
            target="string" if mask == "sha256" else target,
            mask=mask,
        ),
        refused,
    )


def _key(relation: RelationMessage, captured: CapturedTable | None, latest: TableSchema | None) -> tuple[str, ...]:
    """The key's columns in the order of its index. The message names the columns, except under FULL identity. Their
    order comes from the catalogue, or else from the previous version."""
    names = {column.name for column in relation.columns}
    identity = {column.name for column in relation.columns if column.in_identity}
    orders = [captured.key if captured is not None else (), latest.key if latest is not None else ()]
    if relation.identity == "full":
        if captured is not None and captured.columns and not captured.key:
            return ()  # the message does not show it
        return next((order for order in orders if order and names.issuperset(order)), ())
    if relation.identity == "nothing" or not identity:
        return ()
    for order in orders:
        if set(order) == identity:
            return order
    return tuple(column.name for column in relation.columns if column.in_identity)
