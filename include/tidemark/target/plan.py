"""What one Spark application shall apply, and what it says it did: `MergePlan` <-> plan.json, `PlanResult` <->
result.json.

A plan carries no secret and no Airflow (R10): only paths relative to the lake root, table definitions and LSNs. Every
attempt writes a plan of its own, so a driver that outlives its task never reads another's. Pure: no Spark in here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tidemark.lsn import Lsn
from tidemark.schema.table import TableSchema

FORMAT = 1


@dataclass(frozen=True, slots=True)
class PlannedFile:
    path: str
    rows: int
    bytes: int
    schema_version: int


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """One registered batch as far as it touches the table; files in R1 order."""

    start_lsn: Lsn
    end_lsn: Lsn
    files: tuple[PlannedFile, ...]
    unchanged: int
    moved: int
    truncates: int


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """`after`: end of the last touching batch before the plan, None where there is none in this generation.

    `schemas` holds every version that a file of the plan follows, oldest first; the last one is the target's.
    """

    table: str
    after: Lsn | None
    schemas: tuple[TableSchema, ...]
    batches: tuple[PlannedBatch, ...]

    @property
    def end_lsn(self) -> Lsn:
        return self.batches[-1].end_lsn

    @property
    def rows(self) -> int:
        return sum(f.rows for b in self.batches for f in b.files)


@dataclass(frozen=True, slots=True)
class MergePlan:
    """`lake` is the root URI that paths are relative to; `pipeline` and `generation` make up the `txnAppId` (R5)."""

    plan: str
    pipeline: str
    generation: int
    lake: str
    threads: int
    tables: tuple[PlannedTable, ...]

    def to_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "plan": self.plan,
                "pipeline": self.pipeline,
                "generation": self.generation,
                "lake": self.lake,
                "threads": self.threads,
                "tables": [
                    {
                        "table": t.table,
                        "after": None if t.after is None else str(t.after),
                        "schemas": [s.to_json() for s in t.schemas],
                        "batches": [
                            {
                                "start_lsn": str(b.start_lsn),
                                "end_lsn": str(b.end_lsn),
                                "files": [
                                    {
                                        "path": f.path,
                                        "rows": f.rows,
                                        "bytes": f.bytes,
                                        "schema_version": f.schema_version,
                                    }
                                    for f in b.files
                                ],
                                "unchanged": b.unchanged,
                                "moved": b.moved,
                                "truncates": b.truncates,
                            }
                            for b in t.batches
                        ],
                    }
                    for t in self.tables
                ],
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str) -> MergePlan:
        raw = json.loads(text)
        if raw.get("format") != FORMAT:
            raise ValueError(f"plan format {raw.get('format')}, this version reads {FORMAT}")
        return cls(
            plan=raw["plan"],
            pipeline=raw["pipeline"],
            generation=raw["generation"],
            lake=raw["lake"],
            threads=raw["threads"],
            tables=tuple(
                PlannedTable(
                    table=t["table"],
                    after=None if t["after"] is None else Lsn.parse(t["after"]),
                    schemas=tuple(TableSchema.from_json(s) for s in t["schemas"]),
                    batches=tuple(
                        PlannedBatch(
                            start_lsn=Lsn.parse(b["start_lsn"]),
                            end_lsn=Lsn.parse(b["end_lsn"]),
                            files=tuple(PlannedFile(**f) for f in b["files"]),
                            unchanged=b["unchanged"],
                            moved=b["moved"],
                            truncates=b["truncates"],
                        )
                        for b in t["batches"]
                    ),
                )
                for t in raw["tables"]
            ),
        )


@dataclass(frozen=True, slots=True)
class TableResult:
    """What the application found or did to one table.

    Positions are `txnVersion`s read back from Delta after the last step, None where the table has none. `rows` counts
    what was appended to history and inserted, updated, deleted in current; `holes` maps a column to the unchanged
    values whose base is known nowhere. `error` is None, or {"kind", "move", "message"}.
    """

    table: str
    history_lsn: Lsn | None
    current_lsn: Lsn | None
    rows: dict[str, int] = field(default_factory=dict)
    holes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    error: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class PlanResult:
    plan: str
    pipeline: str
    generation: int
    tables: tuple[TableResult, ...]

    def to_json(self) -> str:
        def lsn(value: Lsn | None) -> str | None:
            return None if value is None else str(value)

        tables: list[dict[str, Any]] = [
            {
                "table": t.table,
                "history_lsn": lsn(t.history_lsn),
                "current_lsn": lsn(t.current_lsn),
                "rows": t.rows,
                "holes": t.holes,
                "seconds": t.seconds,
                "error": t.error,
            }
            for t in self.tables
        ]
        return json.dumps(
            {
                "format": FORMAT,
                "plan": self.plan,
                "pipeline": self.pipeline,
                "generation": self.generation,
                "tables": tables,
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str) -> PlanResult:
        raw = json.loads(text)
        if raw.get("format") != FORMAT:
            raise ValueError(f"result format {raw.get('format')}, this version reads {FORMAT}")

        def lsn(value: str | None) -> Lsn | None:
            return None if value is None else Lsn.parse(value)

        return cls(
            plan=raw["plan"],
            pipeline=raw["pipeline"],
            generation=raw["generation"],
            tables=tuple(
                TableResult(
                    table=t["table"],
                    history_lsn=lsn(t["history_lsn"]),
                    current_lsn=lsn(t["current_lsn"]),
                    rows=t["rows"],
                    holes=t["holes"],
                    seconds=t["seconds"],
                    error=t["error"],
                )
                for t in raw["tables"]
            ),
        )
