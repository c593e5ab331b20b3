"""Finds partitions that were created and gone between two readings of the catalogue, and marks their root (R8, R11).

    previous run's reading ──── CREATE, INSERT, DROP, or ATTACH, INSERT, DETACH ──── this run's reading
                                        └─ the stream has the rows, as the root's

Such a partition is in neither reading, so comparing them detects nothing, and `current` would keep its rows for ever.
But pgoutput describes every partition before its first change, with its own name and OID, even if the change is sent as
the root's. If no reading has the partition, the catalogue is read again:

- The partition is gone: the root is marked.
- The partition exists, so it was created after this run's reading. It is added to that reading, so that the next run
  detects its removal.

Three more cases are marked:

- The transaction that created a partition wrote rows to it. If it also truncated the partition by its name, the
  partition kept its storage, and neither the stream nor the catalogue shows that.
- A captured table was a partition for a while. Its changes of that time were sent as another table's.
- A partition identifies its old rows by other columns than its root does. Then it is unknown which rows its changes
  were made to. The decoder leaves out the changes that it cannot assign at all. So every later batch of the run has the
  mark: a backfill beside it may have read a row whose DELETE comes in a later batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from tidemark.capture.definitions.marks import needs_backfill
from tidemark.formats.manifest import TableMark
from tidemark.names import TableName
from tidemark.pgoutput.messages import RelationMessage
from tidemark.schema.fingerprint import Fingerprint, PartitionPrint
from tidemark.schema.table import TableSchema

FILLED_BY_ITS_CREATOR: Final = (
    "a partition was created and filled in one transaction, where a TRUNCATE of it is not seen"
)


class PassingPartitions:
    """The partitions that one drain reads about.

    - `fingerprints` are those of this run, `before` those of the previous run.
    - `captured` returns the captured table of a relation, by its OID.
    - `latest` returns the last version that the stream brought of a table.
    - `read_fingerprint` reads a table's fingerprint again.
    - Every transaction that `fingerprints` contain has an id below `next_xid`.
    """

    def __init__(
        self,
        fingerprints: dict[str, Fingerprint],
        before: Mapping[str, Fingerprint],
        captured: Callable[[int], TableName | None],
        latest: Callable[[TableName], TableSchema | None],
        read_fingerprint: Callable[[str], Fingerprint | None],
        next_xid: int,
    ) -> None:
        self._fingerprints = fingerprints
        self._before = before
        self._captured = captured
        self._latest_version = latest
        self._read_fingerprint = read_fingerprint
        self._next_xid = next_xid
        self._seen: set[tuple[int, int]] = set()
        self._latest: dict[str, Fingerprint] = {}
        self._marks: list[TableMark] = []
        self._with_another: set[str] = set()
        self._not_named: list[TableMark] = []

    def note(self, partition: RelationMessage, root_oid: int) -> bool:
        """Note that a change of the root belongs to this partition. Returns whether the partition identifies old rows
        by other columns than the root."""
        root = self._captured(root_oid)
        self._check(partition, root, root_oid)
        names_others = root is not None and not _names_rows_of(self._latest_version(root), partition)
        if root is not None and names_others:
            reason = "a partition had another replica identity: which rows some changes were made to is not certain"
            self._not_named.append(needs_backfill(root, reason))
        return names_others

    def _check(self, partition: RelationMessage, root: TableName | None, root_oid: int) -> None:
        oid = partition.relation_oid
        if (oid, root_oid) in self._seen:
            return
        if (itself := self._captured(oid)) is not None:
            self._mark(itself, "it was a partition of another table for a while, as which what changed then was sent")
        if self._was_missed(root, partition):
            return  # what comes of it later is another matter
        self._seen.add((oid, root_oid))
        if root is None:
            return
        known = [
            _leaf_of(fingerprints.get(str(root)), root_oid, oid) for fingerprints in (self._fingerprints, self._before)
        ]
        if leaf := next(filter(None, known), None):
            self._mark_if_filled_by_its_creator(root, partition, leaf, self._next_xid)
            return
        now = self._latest.get(str(root))
        if now is None or _leaf_of(now, root_oid, oid) is None:
            now = self._read_fingerprint(str(root))
        if now is None or now.relation_oid != root_oid:
            return  # the root itself is gone, or has another id from this reading on
        self._latest[str(root)] = now
        came = _leaf_of(now, root_oid, oid)
        if came is None:
            self._mark(root, "a partition came and went since the run before, with what it held")
            return
        if not came.born_empty:
            self._mark(root, "a partition was attached with what it held")
        elif not came.is_as_created:
            self._mark(root, "a partition was created and got new storage, as TRUNCATE of a partition gives it")
        else:
            self._mark_if_filled_by_its_creator(root, partition, came, (partition.xid or 0) + 2**31)
        fingerprint = self._fingerprints.get(str(root))
        if fingerprint is not None and fingerprint.relation_oid == root_oid:
            leaves = tuple(sorted((*fingerprint.partitions, came), key=lambda leaf: leaf.oid))
            self._fingerprints[str(root)] = replace(fingerprint, partitions=leaves)
            self._with_another.add(str(root))

    def _mark_if_filled_by_its_creator(
        self, root: TableName, partition: RelationMessage, leaf: PartitionPrint, below: int
    ) -> None:
        """Called for the first change alone: other transactions can write to the partition only after its creator,
        whose id is below `below`."""
        if partition.xid is not None and leaf.may_be_created_by(partition.xid, below - partition.xid):
            self._mark(root, FILLED_BY_ITS_CREATOR)

    def _was_missed(self, root: TableName | None, partition: RelationMessage) -> bool:
        """Whether an earlier fingerprint already missed the partition after this change, so that the root is marked."""
        fingerprint = None if root is None else self._fingerprints.get(str(root))
        below = 0 if fingerprint is None else dict(fingerprint.gone).get(partition.relation_oid, 0)
        return partition.xid is not None and partition.xid < below

    def _mark(self, table: TableName, reason: str) -> None:
        self._marks.append(needs_backfill(table, reason))

    def take(self) -> tuple[list[TableMark], frozenset[str]]:
        """The marks for the next batch, which are returned once, and the tables whose fingerprints have a new
        partition."""
        marks = list(dict.fromkeys([*self._not_named, *self._marks]))
        with_another = frozenset(self._with_another)
        self._marks, self._with_another = [], set()
        return marks, with_another


def _names_rows_of(root: TableSchema | None, partition: RelationMessage) -> bool:
    """Whether the partition's old rows carry the root's identity. If the root has FULL identity they have to be whole
    rows: the stream sends NULL for columns that the partition leaves out."""
    if root is None or partition.identity == "full" or (not root.key and root.identity != "full"):
        return True
    return root.identity != "full" and {column.name for column in partition.columns if column.in_identity} == {
        *root.key
    }


def _leaf_of(fingerprint: Fingerprint | None, root_oid: int, partition_oid: int) -> PartitionPrint | None:
    if fingerprint is None or fingerprint.relation_oid != root_oid:
        return None
    return next((leaf for leaf in fingerprint.partitions if leaf.oid == partition_oid), None)
