"""Checks during a run whether the source has tables that the pipeline file names and its publication lacks:
`UnpublishedTables`.

Only a preflight adds a table to a publication, so no message of the stream announces such a table. The check is one
statement over the catalogue. A table that a preflight did not add counts again once it has changed: it may have a
primary key by now, or another owner. Where other things were in the way, as a lock, it counts again after AGAIN_S.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

from tidemark.config import PipelineConfig
from tidemark.findings import listed
from tidemark.names import TableName

log = logging.getLogger(__name__)

LOOK_S: Final = 30.0
AGAIN_S: Final = 600.0

# A publication of all tables, or of a table's schema, needs nothing. An index is counted because it may become the
# table's identity.
_UNPUBLISHED: Final = """
    SELECT n.nspname, c.relname, c.oid, c.relowner, c.relreplident::text, c.relpersistence::text,
           (SELECT count(*) FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid)
      FROM pg_publication p, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE p.pubname = %s AND NOT p.puballtables
       AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
       AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
       AND NOT EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid)
       AND NOT EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)
"""


class UnpublishedTables:
    """What a run has found so far. The first preflight that it asks for is for all tables, since the run's own may
    have been a while ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked_at = self._counted_at = float("-inf")
        self._found: frozenset[tuple[Any, ...]] = frozenset()

    def has_new(self, source: psycopg.Connection[Any], config: PipelineConfig) -> bool:
        """Whether a preflight may have tables to add. Looks at most every LOOK_S, and returns True once for each."""
        now = self._clock()
        if not config.manage_publication or now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        if now - self._counted_at >= AGAIN_S:
            self._counted_at, self._found = now, frozenset()
        rows = source.execute(_UNPUBLISHED, (config.publication,))
        found = frozenset(row for row in rows if config.rule(TableName(*row[:2])) is not None)
        new, self._found = found - self._found, found
        if new:
            log.info("Not in the publication: %s", listed(sorted(TableName(*row[:2]) for row in new)))
        return bool(new)
