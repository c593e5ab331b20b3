"""Stores one row per run: the times of its stages, and the pipeline's figures at its end.

No decision uses these rows. Each stage writes its time at its end; the capture's last task writes the figures. A killed
run has the times of its completed stages. Rows are kept for KEPT_DAYS.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from tidemark.ledger.connection import Ledger
from tidemark.lsn import Lsn

KEPT_DAYS: Final = 90

Verdict = Literal["ok", "warning", "red"]


@dataclass(frozen=True, slots=True)
class Stage:
    """`s` is the time of all its tries, and of all readers where there are several; `error` is why the last one failed,
    without a row's value."""

    s: float
    tries: int
    failed: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class FailedRun:
    """The newest run of a DAG, where one of its stages failed."""

    dag: str
    stage: str
    error: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Figures:
    """How the pipeline stood when a run ended; None is what could not be seen. `applied_lsn` is that of every table
    that is merged. `lag_s` is the age of the oldest change that is not applied, 0 if there is none, and `lag_bytes` the
    staged WAL that is not applied; where the source's WAL was not read for long, both count from there to `source_lsn`.
    The slot keeps `retained_bytes` of WAL and is lost at `limit_bytes`. `tables` counts them by their state."""

    verdict: Verdict
    generation: int | None = None
    staged_lsn: Lsn | None = None
    applied_lsn: Lsn | None = None
    confirmed_lsn: Lsn | None = None
    source_lsn: Lsn | None = None
    lag_bytes: int | None = None
    lag_s: float | None = None
    retained_bytes: int | None = None
    limit_bytes: int | None = None
    unapplied_batches: int | None = None
    unapplied_changes: int | None = None
    tables: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run. `figures` is None if its last task did not come to write them; `batches` and `changes` are what it
    registered."""

    run_id: str
    began_at: datetime
    ended_at: datetime
    stages: dict[str, Stage]
    level_at: datetime | None
    batches: int | None
    changes: int | None
    figures: Figures | None


@dataclass(frozen=True, slots=True)
class RunPeriod:
    """The runs that ended within `every_s` of `at`: sums of changes and failed runs, and the worst of the rest. The
    stages and the whole run are how long the longest took."""

    at: datetime
    runs: int
    red: int
    changes: int | None
    lag_s: float | None
    lag_bytes: int | None
    retained_bytes: int | None
    limit_bytes: int | None
    unapplied_batches: int | None
    drain_s: float | None
    merge_s: float | None
    run_s: float


def note_stage(ledger: Ledger, run_id: str, stage: str, seconds: float, *, failed: bool, error: str = "") -> None:
    """Add the time of one try of a stage. Before the pipeline has a generation there is nothing to write to."""
    ledger.execute(
        """
        INSERT INTO tidemark.runs AS r (pipeline, run_id, began_at, ended_at, stages)
        SELECT p.pipeline, %(run_id)s, clock_timestamp() - make_interval(secs => %(s)s), clock_timestamp(),
               jsonb_build_object(%(stage)s::text, jsonb_build_object('s', round(%(s)s::numeric, 3), 'tries', 1,
                                                                      'failed', %(failed)s::boolean,
                                                                      'error', %(error)s::text))
          FROM tidemark.pipelines p WHERE p.pipeline = %(pipeline)s
        ON CONFLICT (pipeline, run_id) DO UPDATE
           SET ended_at = excluded.ended_at,
               stages = r.stages || jsonb_build_object(%(stage)s::text, jsonb_build_object(
                   's', round(%(s)s::numeric, 3) + coalesce((r.stages -> %(stage)s ->> 's')::numeric, 0),
                   'tries', 1 + coalesce((r.stages -> %(stage)s ->> 'tries')::integer, 0),
                   'failed', %(failed)s::boolean, 'error', %(error)s::text))
        """,
        {
            "pipeline": ledger.pipeline,
            "run_id": run_id,
            "stage": stage,
            "s": seconds,
            "failed": failed,
            "error": error,
        },
    )


def note_level(ledger: Ledger, run_id: str, at: datetime) -> None:
    """Write down that all that had committed at the source by `at` is staged."""
    ledger.execute(
        """
        INSERT INTO tidemark.runs (pipeline, run_id, began_at, ended_at, level_at)
        SELECT p.pipeline, %(run_id)s, clock_timestamp(), clock_timestamp(), %(at)s
          FROM tidemark.pipelines p WHERE p.pipeline = %(pipeline)s
        ON CONFLICT (pipeline, run_id) DO UPDATE SET level_at = greatest(runs.level_at, excluded.level_at)
        """,
        {"pipeline": ledger.pipeline, "run_id": run_id, "at": at},
    )


def level_at(ledger: Ledger) -> datetime | None:
    """The newest moment as of which a run saw that nothing was left to stage; the heartbeat is another."""
    row = ledger.execute("SELECT max(level_at) FROM tidemark.runs WHERE pipeline = %s", (ledger.pipeline,)).fetchone()
    return None if row is None else row[0]


def note_figures(ledger: Ledger, run_id: str, figures: Figures) -> int | None:
    """Write the run's figures, with what it registered, and let go of the rows that are older than KEPT_DAYS. Returns
    the changes that it registered."""
    values = asdict(figures) | {"tables": None if figures.tables is None else Jsonb(figures.tables)}
    with ledger.transaction():
        row = ledger.execute(
            """
            WITH registered AS (
                SELECT count(*) AS batches, coalesce(sum(changes), 0)::bigint AS changes
                  FROM tidemark.batches WHERE pipeline = %(pipeline)s AND run_id = %(run_id)s)
            INSERT INTO tidemark.runs
                   (pipeline, run_id, began_at, ended_at, verdict, generation, staged_lsn, applied_lsn, confirmed_lsn,
                    source_lsn, lag_bytes, lag_s, retained_bytes, limit_bytes, unapplied_batches, unapplied_changes,
                    tables, batches, changes)
            SELECT p.pipeline, %(run_id)s, clock_timestamp(), clock_timestamp(), %(verdict)s, %(generation)s,
                   %(staged_lsn)s, %(applied_lsn)s, %(confirmed_lsn)s, %(source_lsn)s, %(lag_bytes)s, %(lag_s)s,
                   %(retained_bytes)s, %(limit_bytes)s, %(unapplied_batches)s, %(unapplied_changes)s, %(tables)s,
                   g.batches, g.changes
              FROM tidemark.pipelines p, registered g WHERE p.pipeline = %(pipeline)s
            ON CONFLICT (pipeline, run_id) DO UPDATE
               SET (ended_at, verdict, generation, staged_lsn, applied_lsn, confirmed_lsn, source_lsn, lag_bytes, lag_s,
                    retained_bytes, limit_bytes, unapplied_batches, unapplied_changes, tables, batches, changes) =
                   (excluded.ended_at, excluded.verdict, excluded.generation, excluded.staged_lsn, excluded.applied_lsn,
                    excluded.confirmed_lsn, excluded.source_lsn, excluded.lag_bytes, excluded.lag_s,
                    excluded.retained_bytes, excluded.limit_bytes, excluded.unapplied_batches,
                    excluded.unapplied_changes, excluded.tables, excluded.batches, excluded.changes)
            RETURNING changes
            """,
            {"pipeline": ledger.pipeline, "run_id": run_id, **values},
        ).fetchone()
        ledger.execute(
            "DELETE FROM tidemark.runs "
            "WHERE pipeline = %s AND began_at < clock_timestamp() - make_interval(days => %s)",
            (ledger.pipeline, KEPT_DAYS),
        )
    return None if row is None else row[0]


def last(ledger: Ledger, number: int = 10, *, dag: str = "") -> list[RunRow]:
    """The last runs, newest first; of one DAG alone where its id is given, as `<pipeline>_capture`."""
    with ledger.connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(
            """
            SELECT run_id, began_at, ended_at, stages, level_at, batches, changes, verdict, generation, staged_lsn,
                   applied_lsn, confirmed_lsn, source_lsn, lag_bytes, lag_s, retained_bytes, limit_bytes,
                   unapplied_batches, unapplied_changes, tables
              FROM tidemark.runs WHERE pipeline = %s AND (%s = '' OR starts_with(run_id, %s || '/'))
             ORDER BY began_at DESC LIMIT %s
            """,
            (ledger.pipeline, dag, dag, number),
        ).fetchall()
    return [_run_row(row) for row in rows]


def failed(ledger: Ledger) -> list[FailedRun]:
    """Of each DAG the newest run, if one of its stages failed with an error of its own."""
    rows = ledger.execute(
        """
        SELECT newest.dag, s.key, s.value ->> 'error', newest.ended_at
          FROM (SELECT DISTINCT ON (dag) * FROM
                       (SELECT split_part(run_id, '/', 1) AS dag, began_at, ended_at, stages FROM tidemark.runs
                         WHERE pipeline = %s ORDER BY began_at DESC LIMIT 100) recent
                 ORDER BY dag, began_at DESC) newest
          CROSS JOIN LATERAL jsonb_each(newest.stages) s
         WHERE (s.value ->> 'failed')::boolean AND s.value ->> 'error' <> ''
         ORDER BY newest.dag, s.key
        """,
        (ledger.pipeline,),
    )
    return [FailedRun(*row) for row in rows]


def stretches(ledger: Ledger, since: datetime, every_s: int) -> list[RunPeriod]:
    """The runs with figures since then, oldest first, put together by stretches of time."""
    with ledger.connection.cursor(row_factory=class_row(RunPeriod)) as cursor:
        return cursor.execute(
            """
            SELECT date_bin(make_interval(secs => %s), ended_at, %s) AS at, count(*)::integer AS runs,
                   count(*) FILTER (WHERE verdict = 'red')::integer AS red, sum(changes)::bigint AS changes,
                   max(lag_s) AS lag_s, max(lag_bytes) AS lag_bytes, max(retained_bytes) AS retained_bytes,
                   min(limit_bytes) AS limit_bytes, max(unapplied_batches) AS unapplied_batches,
                   max((stages -> 'drain' ->> 's')::float8) AS drain_s,
                   max((stages -> 'merge' ->> 's')::float8) AS merge_s,
                   max(extract(epoch FROM ended_at - began_at))::float8 AS run_s
              FROM tidemark.runs WHERE pipeline = %s AND began_at >= %s AND ended_at >= %s AND verdict IS NOT NULL
             GROUP BY 1 ORDER BY 1
            """,
            (every_s, since, ledger.pipeline, since - timedelta(days=1), since),
        ).fetchall()


def _run_row(row: dict[str, Any]) -> RunRow:
    stages = {
        stage: Stage(float(one["s"]), one["tries"], one["failed"], one.get("error", ""))
        for stage, one in row.pop("stages").items()
    }
    own = {key: row.pop(key) for key in ("run_id", "began_at", "ended_at", "level_at", "batches", "changes")}
    return RunRow(**own, stages=stages, figures=None if row["verdict"] is None else Figures(**row))
