"""The options of one pipeline, as the rest of the library sees them: checked, typed, defaults filled in.

`config_file` turns include/pipelines/<name>.yaml into these records. Every field of `Bounds` is an option of the file's
`bounds:` section under its own name; the unit stands last in the name, the default beside it, the meaning in `help`, and
docs/configuration.md is generated from all three.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class Bounds:
    """Every bound and time of a pipeline. All are positive."""

    batch_rows: int = _option(1_000_000, "changes after which a batch ends at the next commit")
    batch_bytes: int = _option(256 * 2**20, "bytes of WAL messages after which a batch ends at the next commit")
    batch_s: int = _option(60, "seconds after which a batch ends at the next commit")
    run_s: int = _option(600, "seconds after which a capture run's drain starts no further batch")
    wait_s: int = _option(0, "seconds for which `changes_waiting` defers when it finds nothing; 0 looks once")
    heartbeat_s: int = _option(900, "an idle pipeline writes and confirms a heartbeat at least this often")
    drain_stall_s: int = _option(120, "seconds without any message before a drain fails with the cause")
    lock_timeout_s: int = _option(5, "longest wait for a lock at the source")
    wal_valve_bytes: int = _option(8 * 2**30, "WAL retained by the slot at which the drain confirms up to staged first")
    merge_timeout_s: int = _option(3600, "longest run of the Spark application")
    merge_threads: int = _option(4, "tables merged at the same time in one Spark application")
    park_after: int = _option(3, "failed runs after which a table with a RETRY error is parked")
    unpark_retry_s: int = _option(3600, "how often a table parked after RETRY errors is tried again")
    parked_bytes: int = _option(64 * 2**30, "staging kept for one parked table beyond the retention")
    staging_retention_days: int = _option(14, "days for which applied staging is kept")


@dataclass(frozen=True, slots=True)
class TableRule:
    """One entry of `tables:`, a name or a pattern ("schema.*", "schema.order_*"), with what holds for the tables it names."""

    pattern: str
    leave_out: tuple[str, ...] = ()
    mask: dict[str, Literal["null", "sha256"]] = field(default_factory=dict)
    target: dict[str, str] = field(default_factory=dict)
    line: int = 0


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """One pipeline file. `*_connection` are Airflow connection ids; `lake` is a URI or an absolute local path."""

    pipeline: str
    source_connection: str
    slot: str
    publication: str
    manage_publication: bool
    tables: tuple[TableRule, ...]
    lake: str
    ledger_connection: str
    spark_connection: str = "spark_default"
    spark_conf: dict[str, str] = field(default_factory=dict)
    schedule: str | None = "*/5 * * * *"
    mask_salt_connection: str | None = None
    notifier: str | None = None
    bounds: Bounds = Bounds()
    path: str = ""

    @property
    def application_name(self) -> str:
        """What Tidemark's own backends call themselves in pg_stat_activity."""
        return f"tidemark_{self.pipeline}"
