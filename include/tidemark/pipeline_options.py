"""The options of a pipeline file, by section: what each means, what holds without it, and which a file must have.

`config_file` accepts these and no others, and docs/configuration.md is made of them (`option_table`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from tidemark.config import Alerts, Bounds, Maintenance, Merge

OPTIONS: Final[dict[str, dict[str, str]]] = {
    "": {
        "pipeline": "name of the pipeline: of its DAGs, of its folder in the lake, of its rows in the ledger",
        "source": "the database whose changes are captured",
        "tables": "the tables to capture: names, patterns, or entries with options",
        "lake": "where the tables go: `{root, connection}`, or the root alone",
        "ledger": "the database that holds the ledger",
        "spark": "where the Spark application runs",
        "schedule": "cron expression or Airflow preset of the capture DAG; null for none",
        "evolve": "what becomes of a change of a table's definition: `follow`, `ask` (the table waits until somebody "
        "un-parks it) or `freeze` (until the file says otherwise)",
        "auto_backfill": "whether a capture run that finds a table in need of a backfill starts it; one that is built "
        "in another shape gets its own in any case",
        "mask_salt_connection": "Airflow connection whose password is the salt of `sha256` masks",
        "alerts": "who is told of what must not stay so, and from when on, see below",
        "merge": "when tables are merged, and by how many Spark applications, see below",
        "maintenance": "when staging, ledger and Delta tables are cleaned, and what is kept, see below",
        "bounds": "bounds and times, see below",
    },
    "source": {
        "connection": "Airflow connection of the source database",
        "slot": "replication slot; each pipeline needs one of its own",
        "publication": "publication that the slot reads",
        "filter_role": "role at the source as which a backfill's row filter runs; docs/operations.md, Row filters",
        "manage_publication": "whether preflight creates the publication and keeps its tables those of this file; "
        "if not, it prints the SQL for the publication's owner",
    },
    "tables[]": {
        "name": "a table (`schema.table`) or a pattern (`schema.*`, `schema.order_*`)",
        "leave_out": "columns that never reach staging",
        "mask": "column → `null` or `sha256`, applied before the value reaches staging; never on a key column. A mask "
        "stays with its column when that is renamed (as `null`), until the file names it: `clear` captures it as it is",
        "evolve": "for these tables, in place of what the file says for all",
        "target": "column → `text` or `decimal(p,s)`, in place of the type that docs/formats.md gives it",
    },
    "lake": {
        "root": "`s3://bucket/path` or another URI, an absolute path, or a path relative to this file's folder",
        "connection": "Airflow connection (`aws`, `google_cloud_platform`, `wasb` or `adls`) of the object store; "
        "without one, the machine's own identity",
    },
    "ledger": {"connection": "Airflow connection of the ledger's database"},
    "spark": {
        "connection": "Airflow connection of type spark",
        "conf": "Spark settings of the pipeline's applications",
    },
    "alerts": {
        "notifier": "dotted path of an Airflow notifier, or of a function that returns one; gets `message=` once for "
        "each alert, and once when it is over; docs/operations.md, Alerts",
        "health": "what the capture's task `health` is while the pipeline is not exact: `red`, or `warn` for skipped",
        "max_lag_s": "how long changes may wait for the drain, or staged ones for the merge",
        "wal_share": "share of the WAL that the source lets the slot keep (max_slot_wal_keep_size)",
    },
    "merge": {
        "every": "a whole number with `s`, `m`, `h` or `d`, from `1m` to `1d`: a table's staged changes are merged "
        "when the clock passes the next multiple of it, in UTC; without `every` and `rows`, in each run",
        "rows": "so many staged changes make a table due before that; alone, with `every: 1h`",
        "applications": "Spark applications, as mapped tasks, that a run's tables are spread over where that is worth "
        "their start",
        "threads": "tables merged at the same time in one Spark application",
        "timeout_s": "seconds that a Spark application may run, from its start; then it is ended",
    },
    "maintenance": {
        "schedule": "cron expression or Airflow preset of the maintenance DAG; null for none",
        "staging_days": "how long applied staging is kept, for replay. Longer than the age of the oldest copy of the "
        "ledger that you would restore",
        "versions_days": "how far back the Delta tables can be read as they were (time travel)",
        "put_aside_days": "how long Delta tables are kept that were put aside: those of a dropped table whose "
        "name another one has, and those whose place another shape took; null for good",
    },
    "bounds": {bound.name: bound.metadata["help"] for bound in fields(Bounds) if bound.metadata["option"]},
}
DEFAULTS: Final[dict[str, str]] = {
    "pipeline": "the file's name without `.yaml`",
    "source.slot": "`tidemark_<pipeline>`",
    "source.publication": "the slot's name",
    "source.manage_publication": "`true`",
    "ledger.connection": "`tidemark_ledger`",
    "spark.connection": "`spark_default`",
    "schedule": '`"*/5 * * * *"`',
    "evolve": "`follow`",
    "tables[].evolve": "the file's",
    "auto_backfill": "`false`",
    "alerts.health": "`red`",
    "alerts.max_lag_s": f"`{Alerts().max_lag_s}`",
    "alerts.wal_share": f"`{Alerts().wal_share}`",
    **{f"merge.{name}": f"`{getattr(Merge(), name)}`" for name in ("applications", "threads", "timeout_s")},
    "maintenance.schedule": '`"@daily"`',
    "maintenance.staging_days": "`7`",
    "maintenance.versions_days": "`7`",
    "maintenance.put_aside_days": f"`{Maintenance().put_aside_days}`",
    **{f"bounds.{bound.name}": f"`{bound.default}`" for bound in fields(Bounds) if bound.metadata["option"]},
}
REQUIRED: Final = ("source", "source.connection", "tables", "tables[].name", "lake", "lake.root")
