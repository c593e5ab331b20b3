"""Keeps the versions of each table's definition during one drain, and numbers the shapes that the stream brings.

    the ledger's versions ──► latest, the last one that the stream brought
    a new shape           ──► the number of a reader's version of the same shape, or else the next number

A reader's version is one that only a backfill's reader has read in the catalogue so far. The differences of a version
stay here until the manifest of the first batch that uses the version takes their marks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from tidemark.capture.definitions.marks import marks_of
from tidemark.capture.definitions.version_differences import numbering_difference
from tidemark.formats.manifest import TableMark
from tidemark.ledger.captured.schema_versions import RecordedVersions
from tidemark.names import TableName
from tidemark.schema.evolution import Difference, Verdict
from tidemark.schema.table import TableSchema


class DrainVersions:
    """The versions of one drain: those in the ledger, and those that this drain adds."""

    def __init__(self, recorded: RecordedVersions) -> None:
        self._recorded = recorded
        self._latest: dict[TableName, TableSchema | None] = {}
        self._streamed: dict[TableName, list[TableSchema]] = {}
        self._lost: dict[TableName, frozenset[int]] = {}
        self._differences: dict[tuple[TableName, int], list[Difference]] = {}
        self._used: set[TableName] = set()
        self._passed: list[TableSchema] = []

    def latest(self, table: TableName) -> TableSchema | None:
        """The last version that the stream brought of the table."""
        if table not in self._latest:
            versions = self._recorded.streamed(str(table))
            self._latest[table] = versions[-1] if versions else None
            self._streamed[table] = list(versions)
        return self._latest[table]

    def streamed(self, table: TableName) -> list[TableSchema]:
        """All versions that the stream brought of the table, oldest first."""
        self.latest(table)
        return self._streamed[table]

    def ahead(self, table: TableName) -> list[TableSchema]:
        """The readers' versions after `latest`, oldest first. Read anew at each call, since readers run beside the
        drain."""
        latest = self.latest(table)
        return [v for v in self._recorded.ahead(str(table)) if latest is None or v.version > latest.version]

    def merged(self, table: TableName) -> TableSchema | None:
        """The version of the table's Delta tables."""
        return self._recorded.merged(str(table))

    def has_begun(self, table: TableName) -> bool:
        """Whether this drain has used a version of the table."""
        return table in self._used

    def has_no_shape(self, table: TableName) -> bool:
        """Whether the table starts anew and no change has given it a shape yet, so that every shape fits."""
        return not self.has_begun(table) and self._recorded.is_restarted(str(table))

    def got_first_shape(self, table: str) -> bool:
        """Whether the table started anew and this drain has given it a shape."""
        return self._recorded.was_restarted(table) and self.has_begun(TableName.parse(table))

    def is_latest(self, shape: TableSchema) -> bool:
        """Whether the stream's last version has this shape, and no column number is to be reported as lost."""
        latest = self.latest(shape.table)
        if latest is None or not latest.same_shape(shape):
            return False
        return self._lost_of(shape).isdisjoint((*latest.published, *shape.published))

    def with_number(self, shape: TableSchema, ahead: list[TableSchema], gone: Collection[int]) -> TableSchema:
        """The shape with its version number. Readers' versions with columns of `gone`, which are dropped by now, become
        versions of the stream before it."""
        latest = self.latest(shape.table)
        passed = _with_columns(shape, ahead, gone)
        self._passed += passed
        behind = [version for version in ahead if not passed or version.version > passed[-1].version]
        return replace(shape, version=next_number(shape, passed[-1] if passed else latest, behind))

    def behind_readers(self, latest: TableSchema, gone: Collection[int]) -> TableSchema:
        """The stream's last version. It gets a new number if readers have read columns of `gone` since, which are
        dropped by now: rows of those readers have an older definition."""
        if max(gone, default=0) <= max(latest.published, default=0):
            return latest
        ahead = self.ahead(latest.table)
        if not _with_columns(latest, ahead, gone):
            return latest
        last = self.with_number(latest, ahead, gone)
        self._streamed[last.table].append(last)
        return last

    def add(self, schema: TableSchema, differences: Iterable[Difference]) -> TableSchema:
        """Use a new version from here on, and return it."""
        self.streamed(schema.table).append(schema)
        return self.use(schema, [*differences, *self._numbers_given_again(schema)])

    def use(self, schema: TableSchema, differences: Iterable[Difference]) -> TableSchema:
        """Use a version from here on, and return it. `differences` are marked in the first batch that uses it."""
        if differences := list(differences):
            self._differences.setdefault((schema.table, schema.version), []).extend(differences)
        self._latest[schema.table] = schema
        self._used.add(schema.table)
        return schema

    def take_passed(self) -> list[TableSchema]:
        """The readers' versions that the stream has passed without a change; they are returned once."""
        passed, self._passed = self._passed, []
        return passed

    def take_marks(self, schema: TableSchema) -> tuple[TableMark, ...]:
        """The marks of a version, for the first batch that uses it; they are returned once."""
        return tuple(marks_of(schema.table, self._differences.pop((schema.table, schema.version), [])))

    def _numbers_given_again(self, schema: TableSchema) -> list[Difference]:
        """Differences for columns with the number of a column that occurred in WAL that the source lost. The Delta
        tables may hold that column's values under the same number. Reported once, with a version of its own."""
        lost = self._lost_of(schema)
        again = [column for column in schema.columns if column.attnum in lost]
        self._lost[schema.table] = lost.difference(schema.published)
        return [
            Difference(
                Verdict.NEEDS_BACKFILL,
                f'column "{column.name}" has the number of one that the source lost: older rows may have its values',
                (column.attnum,),
            )
            for column in again
        ]

    def _lost_of(self, schema: TableSchema) -> frozenset[int]:
        if schema.table not in self._lost:
            self._lost[schema.table] = self._recorded.lost_numbers(str(schema.table))
        return self._lost[schema.table]


def _with_columns(shape: TableSchema, ahead: list[TableSchema], gone: Collection[int]) -> list[TableSchema]:
    """The readers' versions that have a column of `gone`."""
    return [
        version
        for version in ahead
        if version.relation_oid == shape.relation_oid and not {c.attnum for c in version.columns}.isdisjoint(gone)
    ]


def next_number(shape: TableSchema, latest: TableSchema | None, ahead: list[TableSchema]) -> int:
    """The version number of a new shape in the stream: that of a reader's version of the same shape, or else the next
    number. A shape without column numbers is never the same as one with them."""
    same = (version for version in ahead if version.same_shape(shape) and not numbering_difference(version, shape))
    read_version = next(same, None)
    if read_version is not None:
        return read_version.version
    return 1 + max([0 if latest is None else latest.version, *(version.version for version in ahead)])
