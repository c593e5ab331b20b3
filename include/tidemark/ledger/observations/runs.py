"""Stores one row per run: the times of its stages, and the pipeline's figures at its end.

No decision uses these rows. Each stage writes its time at its end; the capture's last task writes the figures. A killed
run has the times of its completed stages. Rows are kept for KEPT_DAYS.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from tidemark.ledger.connection import Ledger
from tidemark.lsn import Lsn

KEPT_DAYS: Final = 90

Verdict = Literal["ok", "warning", "red"]


@dataclass(frozen=True, slots=True)
class FailedRun:
    """The newest run of a DAG, where one of its stages failed."""

    dag: str
    stage: str
    error: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Figures:
    """The pipeline's state at the end of a run; None for what could not be read.

    `applied_lsn` is the position of every table that is merged. `lag_s` is the age of the oldest change that is not
    applied, 0 without one, and `lag_bytes` the staged WAL that is not applied. If the source's WAL was not read for
    long, both count up to `source_lsn`. The slot retains `retained_bytes` of WAL and is lost at `limit_bytes`. `tables`
    counts the tables by state.
    """

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


def note_stage(ledger: Ledger, run_id: str, stage: str, seconds: float, *, failed: bool, error: str = "") -> None:
    """Add the duration of one try of a stage. Before the pipeline has a generation nothing is written."""
    _begin(ledger, run_id, seconds)
    ledger.execute(
        """
        UPDATE tidemark.runs
           SET ended_at = clock_timestamp(),
               stages = stages || jsonb_build_object(%(stage)s::text, jsonb_build_object(
                   's', round(%(s)s::numeric, 3) + coalesce((stages -> %(stage)s ->> 's')::numeric, 0),
                   'tries', 1 + coalesce((stages -> %(stage)s ->> 'tries')::integer, 0),
                   'failed', %(failed)s::boolean, 'error', %(error)s::text))
         WHERE pipeline = %(pipeline)s AND run_id = %(run_id)s
        """,
        {
            "run_id": run_id,
            "stage": stage,
            "s": seconds,
            "failed": failed,
            "error": error,
        },
    )


def note_at_work(ledger: Ledger, run_id: str, stage: str) -> None:
    """A later try of the stage is at work, perhaps for hours: the failure of an earlier one is over."""
    ledger.execute(
        "UPDATE tidemark.runs SET stages = jsonb_set(stages, ARRAY[%(stage)s, 'failed'], 'false') "
        "WHERE pipeline = %(pipeline)s AND run_id = %(run_id)s AND stages ? %(stage)s",
        {"run_id": run_id, "stage": stage},
    )


def _begin(ledger: Ledger, run_id: str, seconds: float = 0.0) -> None:
    """Create the run's row, with the time at which it began. Before the pipeline has a generation there is none."""
    ledger.execute(
        """
        INSERT INTO tidemark.runs (pipeline, run_id, began_at, ended_at)
        SELECT p.pipeline, %s, clock_timestamp() - make_interval(secs => %s), clock_timestamp()
          FROM tidemark.pipelines p WHERE p.pipeline = %s
        ON CONFLICT DO NOTHING
        """,
        (run_id, seconds, ledger.pipeline),
    )


def note_level(ledger: Ledger, run_id: str, at: datetime) -> None:
    """Record that everything that had committed at the source by `at` is staged."""
    _begin(ledger, run_id)
    ledger.execute(
        "UPDATE tidemark.runs SET level_at = greatest(level_at, %s) WHERE pipeline = %s AND run_id = %s",
        (at, ledger.pipeline, run_id),
    )


def level_at(ledger: Ledger) -> datetime | None:
    """The latest time at which a run had nothing left to stage; the heartbeat is another such time."""
    return ledger.value("SELECT max(level_at) FROM tidemark.runs WHERE pipeline = %s", (ledger.pipeline,))


def note_figures(ledger: Ledger, run_id: str, figures: Figures) -> int | None:
    """Write the run's figures and the batches that it registered, and delete rows older than KEPT_DAYS. Returns the
    number of registered changes.

    A run that follows the source has figures every minute, and tens of thousands of batches in a day. So only those are
    counted that are staged since its last figures.
    """
    values = asdict(figures) | {"tables": None if figures.tables is None else Jsonb(figures.tables)}
    with ledger.transaction():
        _begin(ledger, run_id)
        values["batches"], values["changes"] = _registered(ledger, run_id, figures)
        changes = ledger.value(
            """
            UPDATE tidemark.runs
               SET ended_at = clock_timestamp(), verdict = %(verdict)s, generation = %(generation)s,
                   staged_lsn = %(staged_lsn)s, applied_lsn = %(applied_lsn)s, confirmed_lsn = %(confirmed_lsn)s,
                   source_lsn = %(source_lsn)s, lag_bytes = %(lag_bytes)s, lag_s = %(lag_s)s,
                   retained_bytes = %(retained_bytes)s, limit_bytes = %(limit_bytes)s,
                   unapplied_batches = %(unapplied_batches)s, unapplied_changes = %(unapplied_changes)s,
                   tables = %(tables)s, batches = %(batches)s, changes = %(changes)s
             WHERE pipeline = %(pipeline)s AND run_id = %(run_id)s
            RETURNING changes
            """,
            {"run_id": run_id, **values},
        )
        ledger.execute(
            "DELETE FROM tidemark.runs "
            "WHERE pipeline = %s AND began_at < clock_timestamp() - make_interval(days => %s)",
            (ledger.pipeline, KEPT_DAYS),
        )
    return changes


def _registered(ledger: Ledger, run_id: str, figures: Figures) -> tuple[int, int]:
    """The run's batches and their changes, up to the staged LSN of the figures."""
    before = ledger.execute(
        "SELECT generation, staged_lsn, batches, changes FROM tidemark.runs "
        "WHERE pipeline = %s AND run_id = %s AND staged_lsn IS NOT NULL",
        (ledger.pipeline, run_id),
    ).fetchone()
    generation, staged_lsn, batches, changes = before or (0, Lsn(0), 0, 0)
    if figures.generation is None or figures.staged_lsn is None:
        return batches, changes
    # OFFSET 0: with statistics of some moment, all of the run's batches would be read.
    since = "(b.generation, b.end_lsn) > (%(generation)s, %(staged_lsn)s::pg_lsn) OFFSET 0"
    more = ledger.row(
        f"""
        SELECT count(*), coalesce(sum(b.changes), 0)::bigint
          FROM (SELECT * FROM tidemark.batches b
                 WHERE b.pipeline = %(pipeline)s AND {"b.run_id = %(run_id)s" if before is None else since}) b
         WHERE b.run_id = %(run_id)s AND (b.generation, b.end_lsn) <= (%(up_to_generation)s, %(up_to)s::pg_lsn)
        """.encode(),
        {
            "run_id": run_id,
            "generation": generation,
            "staged_lsn": staged_lsn,
            "up_to_generation": figures.generation,
            "up_to": figures.staged_lsn,
        },
    )
    return batches + more[0], changes + more[1]


def last(ledger: Ledger, number: int) -> list[dict[str, Any]]:
    """The rows of the last runs, newest first. `stages` has per stage the seconds of all its tries (`s`), and of all
    readers where there are several; `error` is why the last one failed, without a row's value."""
    query = "SELECT * FROM tidemark.runs WHERE pipeline = %s ORDER BY began_at DESC LIMIT %s"
    return ledger.records(dict_row, query, (ledger.pipeline, number))


def failed(ledger: Ledger) -> list[FailedRun]:
    """For each DAG its newest run, if one of the run's stages failed with an error of its own."""
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


def stretches(ledger: Ledger, since: datetime, every_s: int) -> list[dict[str, Any]]:
    """The runs with figures since then, oldest first, grouped by periods: the time `at` which they ended, the sum
    of changes, and the worst of the other figures. For stages and whole runs that is the longest duration."""
    return ledger.records(
        dict_row,
        """
        SELECT date_bin(make_interval(secs => %s), ended_at, %s) AS at, sum(changes)::bigint AS changes,
               max(lag_s) AS lag_s, max(lag_bytes) AS lag_bytes, max(retained_bytes) AS retained_bytes,
               max((stages -> 'drain' ->> 's')::float8) AS drain_s,
               max((stages -> 'merge' ->> 's')::float8) AS merge_s,
               max(extract(epoch FROM ended_at - began_at))::float8 AS run_s
          FROM tidemark.runs WHERE pipeline = %s AND began_at >= %s AND ended_at >= %s AND verdict IS NOT NULL
         GROUP BY 1 ORDER BY 1
        """,
        (every_s, since, ledger.pipeline, since - timedelta(days=1), since),
    )
