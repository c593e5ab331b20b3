"""Holds the readings of the catalogue of one drain, and numbers the columns of RELATION messages by them (R11).

    the run before ──► its fingerprints, older than every change that is not staged
    the run begins ──► its fingerprints and the catalogue
    RELATION       ──► the catalogue again, if the last reading lacks the relation, a type, or the transaction

The stream may be older than every reading. `schema.column_numbers` decides whether a message's columns have certain
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.capture.definitions.table_definition import Catalog, numbered
from tidemark.names import TableName
from tidemark.pgoutput.messages import RelationMessage
from tidemark.schema.column_numbers import PublishedNumbers, place
from tidemark.schema.fingerprint import ColumnPrint, Fingerprint
from tidemark.schema.table import TableSchema
from tidemark.source.catalogue.catalog import CapturedTable


@dataclass(frozen=True, slots=True)
class EarlierFingerprints:
    """Fingerprints of tables, by table id, from earlier readings of the catalogue.

    - `recorded` are those in the ledger.
    - `staged` are those of them that are older than every change that is not staged yet.
    - `first` were read when the run began, before every transaction with an id of `first_below` or above.
    """

    recorded: Mapping[str, Fingerprint]
    staged: Mapping[str, Fingerprint]
    first: Mapping[str, Fingerprint]
    first_below: int


class CatalogueReadings:
    """The last reading, and the earlier ones. `read` reads the catalogue."""

    def __init__(self, read: Callable[[], Catalog], first: Catalog, earlier: EarlierFingerprints) -> None:
        self._read = read
        self._earlier = earlier
        self.catalog = first

    def table(self, oid: int) -> CapturedTable | None:
        """The captured table of a relation, as the last reading has it."""
        return self.catalog.tables.get(oid)

    def columns(self, oid: int) -> dict[int, ColumnPrint]:
        """The columns of a relation by number, as the last reading has them."""
        captured = self.table(oid)
        return {} if captured is None else {column.attnum: column for column in captured.columns}

    def recorded(self, table: TableName) -> Fingerprint | None:
        """The table's fingerprint in the ledger."""
        return self._earlier.recorded.get(str(table))

    def read_unknown(self, relation: RelationMessage) -> None:
        """Read the catalogue again if the last reading lacks the relation or the type of a column."""
        has_types = all(column.type_oid in self.catalog.types for column in relation.columns)
        if relation.relation_oid not in self.catalog.tables or not has_types:
            self.catalog = self._read()

    def read_after(self, relation: RelationMessage) -> None:
        """Read the catalogue again unless the last reading contains the message's transaction. One reading covers all
        tables, so many altered tables cost one reading."""
        if relation.xid is None or relation.xid >= self.catalog.seen_below:
            self.catalog = self._read()

    def take_over(self, table: TableName, before: TableName) -> None:
        """Use the readings of `before` for the table that replaces it."""

        def with_table(fingerprints: Mapping[str, Fingerprint]) -> Mapping[str, Fingerprint]:
            own = fingerprints.get(str(before))
            return fingerprints if own is None else {**fingerprints, str(table): own}

        earlier = self._earlier
        self._earlier = replace(earlier, staged=with_table(earlier.staged), first=with_table(earlier.first))
        kept = {oid: one.kept_as(table) if one.table == before else one for oid, one in self.catalog.tables.items()}
        self.catalog = replace(self.catalog, tables=kept)

    # --- dropped columns ----------------------------------------------------------------------------------------------

    def dropped_beside(self, shape: TableSchema) -> set[int]:
        """The numbers of columns that the catalogue has as dropped and the shape does not have."""
        captured = self.table(shape.relation_oid)
        return set() if captured is None else {*captured.dropped} - {*shape.published}

    def dropped_names(self, shape: TableSchema) -> set[str]:
        """The names of the shape's columns that the catalogue has as dropped by now."""
        captured = self.table(shape.relation_oid)
        return set() if captured is None else {c.name for c in shape.columns if c.attnum in captured.dropped}

    def may_have_other_columns(self, relation: RelationMessage, latest: TableSchema) -> bool:
        """Whether a column of this name and type may be another one than in `latest`, because one of them was
        dropped.

        A repeated message has the columns that it had when it was sent. The catalogue was read for it then, and again
        when this drain began.
        """
        if not latest.published or latest.relation_oid != relation.relation_oid:
            return False
        if not relation.is_repeated:
            self.read_after(relation)
        captured = self.table(relation.relation_oid)
        return captured is not None and not {c.attnum for c in captured.columns}.issuperset(latest.published)

    # --- numbers of columns -------------------------------------------------------------------------------------------

    def numbers_columns_since(self, relation: RelationMessage, latest: TableSchema) -> bool:
        """Whether the catalogue now gives the columns' numbers, which `latest` does not have."""
        captured = self.table(relation.relation_oid)
        if latest.published or latest.relation_oid != relation.relation_oid or captured is None:
            return False
        return bool(place([c.name for c in relation.columns], self._published(captured, relation), ()))

    def with_column_numbers(
        self, relation: RelationMessage, shape: TableSchema, streamed: Sequence[TableSchema]
    ) -> TableSchema:
        """The shape with its columns' numbers, and with the default that older rows have in added columns. The shape is
        returned unchanged if the numbers are not certain. `streamed` are the table's versions in the stream."""
        captured = self.table(relation.relation_oid)
        if captured is None:
            return shape
        names, now = [c.name for c in relation.columns], self._published(captured, relation)
        numbers = place(names, now, self._numbers_before(captured, streamed))
        return shape if numbers is None else numbered(shape, relation, numbers, self._with_first_defaults(captured))

    def _published(self, captured: CapturedTable, relation: RelationMessage) -> PublishedNumbers:
        """The columns that the stream sends of the table, by the catalogue. `settled` are columns that were dropped
        before the message's transaction wrote anything."""
        readings = [self._earlier.staged]
        if relation.xid is not None and relation.xid >= self._earlier.first_below:
            readings.append(self._earlier.first)
        earlier = [one for reading in readings if (one := _of_relation(reading, captured)) is not None]
        names = set(captured.published_columns)
        return PublishedNumbers(
            tuple((c.attnum, c.name) for c in captured.columns if c.name in names),
            frozenset(c.attnum for c in captured.columns),
            frozenset(captured.dropped),
            frozenset(attnum for fingerprint in earlier for attnum, _ in fingerprint.dropped),
        )

    def _numbers_before(self, captured: CapturedTable, streamed: Sequence[TableSchema]) -> list[tuple[int, ...]]:
        """The column numbers of each earlier version; if the stream brought none, those of an earlier fingerprint.
        Empty if the last version has no numbers."""
        versions = [version for version in streamed if version.relation_oid == captured.relation_oid]
        if versions:
            return [version.published for version in versions] if versions[-1].published else []
        fingerprint = _of_relation(self._earlier.staged, captured)
        if fingerprint is None:
            return []
        numbers = tuple(column.attnum for column in fingerprint.columns)
        return [numbers] if len(numbers) == len(fingerprint.published_columns) else []

    def _with_first_defaults(self, captured: CapturedTable) -> dict[int, ColumnPrint]:
        """The catalogue's columns by number. A rewrite of the table removes a default from the catalogue; the run's
        first reading still has it."""
        first = _of_relation(self._earlier.first, captured)
        before = {} if first is None else {c.attnum: c for c in first.columns}
        return {c.attnum: before.get(c.attnum, c) if c.missing is None else c for c in captured.columns}


def _of_relation(fingerprints: Mapping[str, Fingerprint], captured: CapturedTable) -> Fingerprint | None:
    """The table's fingerprint; None if there is none, or if it is of another relation."""
    fingerprint = fingerprints.get(str(captured.table))
    same = fingerprint is not None and fingerprint.relation_oid == captured.relation_oid
    return fingerprint if same else None
