"""A mark of the last run, at the source, that `pg_upgrade` carries over; and what a new cluster shows of its upgrade.

The mark is a default that the capture's role has in the source's database, which any role may give itself and which no
session of Tidemark heeds, since each brings an application_name of its own:

    application_name = 'tidemark upgrade: shop=0f6d8e1c-aaaa-bbbb-cccc-0123456789ab/776 other=- ~old=…/512'
                                          └ pipeline, attempt of the run, id of its heartbeat's transaction
                        other: no run has marked yet; ~old: was upgraded, its runs mark no more

A run writes it in the very transaction of its heartbeat, and only where nothing else was under way since its look at
the catalogue began. What a new cluster shows (PostgreSQL 15 to 18, src/bin/pg_upgrade):

    pg_db_role_setting                the marks of the state that was upgraded (pg_dumpall, global objects)
    datfrozenxid of template0         the next transaction id of that state (set_frozenxids)
    the beginning of its WAL          `first_wal`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from tidemark.config import PipelineConfig

_SETTING: Final = "application_name"
_PREFIX: Final = "tidemark upgrade: "

# Of any role in any database; a database may be left out, and the role too.
_SETTINGS: Final = "SELECT unnest(setconfig) FROM pg_db_role_setting"
_OWN_SETTINGS: Final = """
    SELECT unnest(s.setconfig) FROM pg_db_role_setting s
     WHERE s.setrole = (SELECT oid FROM pg_roles WHERE rolname = current_user)
       AND s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
# Two pipelines may share role and database.
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('tidemark upgrade', 0))"


@dataclass(frozen=True, slots=True)
class Mark:
    """`attempt` is that of the lease under which a run drained, `xid` the 64-bit id of its heartbeat's transaction;
    None where no run has marked yet. Of a pipeline that `is_done` no run marks any more."""

    pipeline: str
    attempt: str | None = None
    xid: int | None = None
    is_done: bool = False

    def __str__(self) -> str:
        done = "~" if self.is_done else ""
        return f"{done}{self.pipeline}=" + ("-" if self.attempt is None else f"{self.attempt}/{self.xid}")

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Read what str() gives. Raises ValueError on anything else."""
        pipeline, _, run = text.partition("=")
        is_done, pipeline = pipeline.startswith("~"), pipeline.removeprefix("~")
        if run == "-":
            return cls(pipeline, is_done=is_done)
        attempt, xid = run.split("/")
        return cls(pipeline, attempt, int(xid), is_done)


class NameTaken(Exception):
    """The role has a default of that name in the source's database that is not Tidemark's. Internal."""


def marks(source: psycopg.Connection[Any]) -> list[Mark]:
    """Those of all pipelines that capture from the server."""
    return [mark for own in map(_marks_in, _settings(source, _SETTINGS)) for mark in own.values()]


def own(source: psycopg.Connection[Any], config: PipelineConfig) -> Mark | None:
    """The pipeline's own; None where no upgrade was announced."""
    return _own(source).get(config.pipeline)


def announce(source: psycopg.Connection[Any], config: PipelineConfig) -> Mark:
    """Let every run mark from now on; the mark that there is. Raises NameTaken."""
    if any(name == _SETTING and not value.startswith(_PREFIX) for name, value in _pairs(source)):
        raise NameTaken
    with source.transaction():
        source.execute(_LOCK)
        marks = _own(source)
        if config.pipeline not in marks or marks[config.pipeline].is_done:
            marks[config.pipeline] = Mark(config.pipeline)
            _write(source, marks)
    return marks[config.pipeline]


def take_back(source: psycopg.Connection[Any], config: PipelineConfig) -> bool:
    """Remove the pipeline's mark; False where it has none."""
    with source.transaction():
        source.execute(_LOCK)
        marks = _own(source)
        if marks.pop(config.pipeline, None) is None:
            return False
        _write(source, marks)
    return True


def end(source: psycopg.Connection[Any], config: PipelineConfig) -> None:
    """The cluster was upgraded, and this pipeline goes on there. Its mark stays, for the others to count."""
    with source.transaction():
        source.execute(_LOCK)
        marks = _own(source)
        mark = marks.get(config.pipeline)
        if mark is not None:
            _write(source, {**marks, mark.pipeline: Mark(mark.pipeline, mark.attempt, mark.xid, is_done=True)})


@dataclass(frozen=True, slots=True)
class Marking:
    """A run that shall mark. `next_xid` is the id that the next transaction gets, None where others are under way."""

    pipeline: str
    next_xid: int | None

    @classmethod
    def of_run(cls, source: psycopg.Connection[Any], config: PipelineConfig) -> Marking | None:
        """None where no upgrade was announced. Called before the run's look at the catalogue."""
        mark = own(source, config)
        if mark is None or mark.is_done:
            return None
        row = source.execute(
            "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() s"
        ).fetchone()
        assert row is not None
        return cls(config.pipeline, row[1] if row[0] == row[1] else None)

    def write(self, source: psycopg.Connection[Any], attempt: str, xid: int) -> Mark:
        """In the heartbeat's transaction, whose id is `xid`. If it is not the next one since before the look, something
        may have been altered behind that, and the mark says nothing."""
        mark = Mark(self.pipeline, attempt, xid) if xid == self.next_xid else Mark(self.pipeline)
        source.execute(_LOCK)
        _write(source, {**_own(source), self.pipeline: mark})
        return mark


def upgraded_at_xid(source: psycopg.Connection[Any]) -> int | None:
    """By the low 32 bits, the next transaction id of the state that `pg_upgrade` took over; None where template0 does
    not say."""
    row = source.execute("SELECT datfrozenxid::text::bigint FROM pg_database WHERE datname = 'template0'").fetchone()
    return None if row is None else int(row[0])


def is_restored(source: psycopg.Connection[Any], publication: str, before_xid: int) -> bool:
    """Whether all that makes the publication's tables members of it, and partitions of others, was written before that
    transaction, by its low 32 bits."""
    row = source.execute(
        """
        WITH written (xmin) AS (
            SELECT xmin FROM pg_publication WHERE pubname = %(publication)s
            UNION ALL
            SELECT r.xmin FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
             WHERE p.pubname = %(publication)s
            UNION ALL
            SELECT n.xmin FROM pg_publication_namespace n JOIN pg_publication p ON p.oid = n.pnpubid
             WHERE p.pubname = %(publication)s
            UNION ALL
            SELECT xmin FROM pg_inherits)
        SELECT coalesce(bool_and(age(xmin) > age(%(before)s::text::xid)), false) FROM written
        """,
        {"publication": publication, "before": before_xid},
    ).fetchone()
    return row is not None and bool(row[0])


# --- the setting ----------------------------------------------------------------------------------------------------


def _settings(source: psycopg.Connection[Any], query: str) -> list[str]:
    return [setting for (setting,) in source.execute(query.encode()).fetchall()]


def _pairs(source: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    pairs = [setting.partition("=") for setting in _settings(source, _OWN_SETTINGS)]
    return [(name, value) for name, _, value in pairs]


def _own(source: psycopg.Connection[Any]) -> dict[str, Mark]:
    marks: dict[str, Mark] = {}
    for setting in _settings(source, _OWN_SETTINGS):
        marks |= _marks_in(setting)
    return marks


def _marks_in(setting: str) -> dict[str, Mark]:
    """By pipeline; none in a setting that is not Tidemark's, or that somebody wrote into."""
    name, _, value = setting.partition("=")
    if name != _SETTING or not value.startswith(_PREFIX):
        return {}
    try:
        found = [Mark.parse(text) for text in value.removeprefix(_PREFIX).split()]
    except ValueError:
        return {}
    return {mark.pipeline: mark for mark in found}


def _write(source: psycopg.Connection[Any], own: Mapping[str, Mark]) -> None:
    alter = sql.SQL("ALTER ROLE CURRENT_USER IN DATABASE {} ").format(sql.Identifier(source.info.dbname))
    if own:
        value = _PREFIX + " ".join(str(mark) for _, mark in sorted(own.items()))
        source.execute(alter + sql.SQL("SET application_name = {}").format(sql.Literal(value)))
    else:
        source.execute(alter + sql.SQL("RESET application_name"))
