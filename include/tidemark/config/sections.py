"""Defines the sections of a pipeline file: each option's type, default, bounds and description.

pydantic reads a file's values into these models and collects every error. The text below an option describes it in
docs/configuration.md and docs/pipeline.schema.json. The unit of an option stands last in its name.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    Strict,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from tidemark.config.table_rules import Evolve, TableRule, TableRules, split_pattern
from tidemark.names import TableName

# The longest time that a table waits if the file sets only the number of changes that make it due.
_EVERY_S: Final = 3600

# `every` counts from midnight, so that a table that is merged every 15 minutes is merged at the quarters of an hour.
_GRID: Final = datetime(2000, 1, 1, tzinfo=UTC)
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# Names of Spark's and Hadoop's settings whose values are secrets. The path of a file and the name of a credential
# provider are no secrets.
_SECRET_SETTING: Final = re.compile(
    r"(secret([.-]?key)?|password|passphrase|token|account\.key(\.[\w.-]+)?|sas\.[\w.-]+)$", re.IGNORECASE
)
_READ_IN_TWO_WAYS: Final = re.compile(r"(s3a|gs|abfss)://.*([%?#]|//)")


@dataclass(frozen=True, slots=True)
class _Expected:
    """Words an error of the annotated type as "must be …"; `shown` states whether the error may show the value."""

    words: str
    shown: bool = True

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        kind = "expected" if self.shown else "expected_unshown"
        return core_schema.custom_error_schema(handler(source), kind, custom_error_message=self.words)


# --- types of values --------------------------------------------------------------------------------------------------


def _check_pattern(text: str) -> str:
    split_pattern(text)
    return text


def _check_target(text: str) -> str:
    precision, scale = map(int, re.findall(r"\d+", text) or (1, 0))
    if not 1 <= precision <= 38 or scale > precision:
        raise ValueError
    return text


def _check_time(least_s: int, most_s: int, text: str) -> str:
    if not least_s <= _seconds(text) <= most_s:
        raise ValueError
    return text


def _seconds(text: str) -> int:
    return int(text[:-1]) * _UNIT_S[text[-1]]


def _check_setting(name: str) -> str:
    if not name.startswith("spark."):
        raise ValueError(f"{name!r} is no Spark setting: their names begin with 'spark.'")
    if _SECRET_SETTING.search(name):
        raise ValueError(
            f"{name} is a secret, and would stand in spark-submit's command line, which everybody on the machine "
            "reads: name a connection, lake: {root, connection}, or set it in spark-defaults.conf of the machines that "
            "run Spark"
        )
    return name


def _check_root(root: str) -> str:
    """The lake's root in the one spelling that clients and Spark use. Raises ValueError."""
    if root.startswith("file://"):
        root = "/" + root.removeprefix("file://").lstrip("/")
    scheme, separator, place = root.partition("://")
    if "@" in place.partition("/")[0] and scheme != "abfss":
        raise ValueError("has no user and no secret in it; name a connection: lake: {root, connection}")
    if scheme in ("s3", "s3n"):
        root = f"s3a://{place}"  # Hadoop's name for it, and one lake has one name
    elif separator and scheme not in ("s3a", "gs", "abfss"):
        raise ValueError(f"cannot be at {scheme}://: name a folder, or a place in s3://, gs:// or abfss://")
    if _READ_IN_TWO_WAYS.match(root.rstrip("/")):
        raise ValueError(
            f"{root!r} has %, ?, # or an empty name in its path, which Spark takes for another folder than the clients "
            "of object stores do: name one without"
        )
    return root.rstrip("/") if separator else root


Text = Annotated[str, Field(pattern=r"\S"), _Expected("a text")]
Flag = Annotated[bool, Strict(), _Expected("true or false")]
Whole = Annotated[int, Strict(), Field(ge=1), _Expected("a whole number, 1 or more")]
WholeOrZero = Annotated[int, Strict(), Field(ge=0), _Expected("a whole number, 0 or more")]
Share = Annotated[float, Strict(), Field(gt=0, le=1), _Expected("a number above 0, and 1 at most")]
PIPELINE_NAME: Final = "^[A-Za-z0-9_-]{1,64}$"
PipelineName = Annotated[str, Field(pattern=PIPELINE_NAME), _Expected("letters, digits, '_' and '-', at most 64")]
SlotName = Annotated[
    str, Field(pattern="^[a-z0-9_]{1,63}$"), _Expected("lower-case letters, digits and '_', at most 63")
]
Connection = Annotated[
    str,
    Field(pattern="^([A-Za-z0-9_./-]|:[A-Za-z0-9_.-])+$"),
    _Expected("the id of an Airflow connection, without address or secret", shown=False),
]
Schedule = Annotated[str, Field(pattern=r"\S"), _Expected("a cron expression or preset in quotes, or null")]
ClassPath = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"), _Expected("the dotted path of a class")]
Every = Annotated[
    str,
    Field(pattern="^[0-9]{1,9} *[smhd]$"),
    AfterValidator(partial(_check_time, 60, 86_400)),
    _Expected("a whole number with s, m, h or d, from 1m to 1d"),
]
Pace = Annotated[
    str,
    Field(pattern="^[0-9]{1,9} *[sm]$"),
    AfterValidator(partial(_check_time, 1, 300)),
    _Expected("a whole number with s or m, from 1s to 5m"),
]
Pattern = Annotated[
    str,
    AfterValidator(_check_pattern),
    _Expected('of the form schema.table, where a part that holds a dot is quoted: schema."a.b"'),
]
Target = Annotated[
    str,
    Field(pattern=r"^(text|decimal\(\s*\d{1,2}\s*,\s*\d{1,2}\s*\))$"),
    AfterValidator(_check_target),
    _Expected("text or decimal(p,s) with p up to 38 and s up to p"),
]
_Masks = Literal["null", "sha256", "clear"]
# An unquoted null means the mask of that name.
Mask = Annotated[
    _Masks, BeforeValidator(lambda value: "null" if value is None else value, json_schema_input_type=_Masks | None)
]
Root = Annotated[Text, AfterValidator(_check_root)]
Setting = Annotated[str, AfterValidator(_check_setting)]
SettingValue = Annotated[
    str, _Expected("a text or a number"), WithJsonSchema({"type": ["string", "number", "boolean"]})
]


# --- sections ---------------------------------------------------------------------------------------------------------

# The place in `tables` at which two options contradict each other, and a sentence.
Contradiction = tuple[tuple[str | int, ...], str]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceSection(_Section):
    connection: Connection
    """Airflow connection of the source database"""
    slot: SlotName | None = None
    """replication slot; each pipeline needs one of its own"""
    publication: Text | None = None
    """publication that the slot reads"""
    manage_publication: Flag = True
    """whether preflight creates the publication and keeps its tables equal to this file's; if false, it prints the SQL
    for the publication's owner"""


class TableEntry(_Section):
    name: Pattern
    """a table (`schema.table`) or a pattern (`schema.*`, `schema.order_*`)"""
    leave_out: tuple[Text, ...] = ()
    """columns that never reach staging"""
    mask: dict[str, Mask] = {}
    """column → `null` or `sha256`, applied before the value reaches staging; not for key columns. After a rename,
    the mask stays with the column (as `null`) until the file names the new name; `clear` captures it unmasked"""
    evolve: Evolve | None = None
    """overrides the file's `evolve` for these tables"""
    target: dict[str, Target] = {}
    """column → `text` or `decimal(p,s)`, instead of the type in docs/formats.md"""

    def rule(self, line: int) -> TableRule:
        return TableRule(
            self.name,
            self.leave_out,
            {column: how for column, how in self.mask.items() if how != "clear"},
            self.target,
            line,
            tuple(column for column, how in self.mask.items() if how == "clear"),
            self.evolve,
        )

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """The contradictions between options of the entry, each as an option and a sentence."""
        for column in self.leave_out:
            if column in self.mask or column in self.target:
                yield "leave_out", f"column {column!r} of {self.name} is left out and has a mask or target too"
        for column in self.target:
            if self.mask.get(column) == "sha256":
                yield "target", f"column {column!r} of {self.name} has a mask and a target: a hash is always text"


class LakeSection(_Section):
    root: Root
    """a place in `s3://`, `gs://` or `abfss://`, an absolute path, or a path relative to this file's folder"""
    connection: Connection | None = None
    """Airflow connection (`aws`, `google_cloud_platform`, `wasb` or `adls`) of the object store; default: the machine's
    own identity"""


class LedgerSection(_Section):
    connection: Connection = "tidemark_ledger"
    """Airflow connection of the ledger's database"""


class SparkSection(_Section):
    connection: Connection = "spark_default"
    """Airflow connection of type spark"""
    conf: dict[Setting, SettingValue] = {}
    """Spark settings of the pipeline's applications"""


class Alerts(_Section):
    """Defines the receiver and thresholds of alerts, and whether the task `health` fails or is skipped while the
    pipeline is not exact."""

    notifier: ClassPath | None = None
    """dotted path of an Airflow notifier, or of a function that returns one; called with `message=` when an alert
    starts and when it ends; docs/operations.md, Alerts"""
    health: Literal["red", "warn"] = "red"
    """state of the capture's task `health` while the pipeline is not exact: `red` (failed) or `warn` (skipped)"""
    max_lag_s: Whole = 3600
    """seconds that changes may wait for the drain, or staged changes for the merge"""
    wal_share: Share = 0.5
    """retained WAL that sends an alert, as a share of the source's limit (max_slot_wal_keep_size)"""


class Merge(_Section):
    """Sets when a table is merged, and by how many Spark applications.

    With neither `every` nor `rows` each run merges everything that is staged. Otherwise a table's staged changes wait
    until the clock passes a multiple of `every` (UTC), so that tables come due together, or until `rows` changes wait.
    `rows` alone implies an hour, so that a table with few changes comes due too.
    """

    every: Every | None = None
    """a whole number with `s`, `m`, `h` or `d`, from `1m` to `1d`: a table's staged changes are merged when the
    clock passes the next multiple of it, in UTC; without `every` and `rows`, in each run"""
    rows: Whole | None = None
    """staged changes that make a table due earlier; without `every`, it implies `every: 1h`"""
    applications: Whole = 1
    """largest number of Spark applications, as mapped tasks, that a run's tables are spread over"""
    threads: Whole = 4
    """tables merged at the same time in one Spark application"""
    timeout_s: Whole = 3600
    """seconds after which a Spark application is ended"""

    @property
    def defers(self) -> bool:
        """Whether merges of a table may be deferred."""
        return self.every is not None or self.rows is not None

    @property
    def every_s(self) -> int:
        """The longest time that a table waits, in seconds."""
        return _EVERY_S if self.every is None else _seconds(self.every)

    def due_at(self, since: datetime) -> datetime:
        """The time at which a table is due whose oldest change waits since `since`."""
        every = timedelta(seconds=self.every_s)
        return _GRID + ((since - _GRID) // every + 1) * every


class Follow(_Section):
    """Has a capture run follow the source until the next one is due. Drain and merge work at the same time, batch
    by batch, with one Spark application for the run. Without it a run stages the waiting changes, merges them, and
    ends."""

    every: Pace
    """a whole number with `s` or `m`, from `1s` to `5m`: the least time between two batches of a run; a change that
    comes after a longer pause is staged at once"""

    @property
    def every_s(self) -> int:
        """The least time between two batches, in seconds."""
        return _seconds(self.every)


class Maintenance(_Section):
    """Sets when the DAG `<pipeline>_maintenance` runs, and how long it keeps staging, older versions of the Delta
    tables, and tables that were put aside (None: forever). Its thresholds are in `target.table_compaction`."""

    schedule: Schedule | None = "@daily"
    """cron expression or Airflow preset of the maintenance DAG; null for none"""
    staging_days: Whole = 7
    """how long applied staging is kept, for replay; longer than the age of the oldest copy of the ledger that you would
    restore"""
    versions_days: Whole = 7
    """how far back old versions of the Delta tables stay readable (time travel)"""
    put_aside_days: Whole | None = 30
    """how long Delta tables are kept that another pair replaced (a new table of the same name, another shape); null
    keeps them forever"""


class BoundsSection(_Section):
    """The bounds that a file may set. There is rarely a reason to change another one, and a file has 25 options at
    most."""

    batch_rows: Whole = 1_000_000
    """changes after which a batch ends at the next commit"""
    batch_bytes: Whole = 256 * 2**20
    """bytes of WAL messages after which a batch ends at the next commit"""
    wait_s: WholeOrZero = 0
    """seconds for which `changes_waiting` waits for changes; 0 checks once"""
    wal_valve_bytes: Whole = 8 * 2**30
    """retained WAL above which the drain first confirms up to staged"""


class Bounds(BoundsSection):
    """Every bound and time of a pipeline: those of the file, and those that are equal for all pipelines."""

    drain_stall_s: int = 120
    """seconds without any message before a drain fails with the cause"""
    lock_timeout_s: int = 5
    """longest wait for a lock at the source"""
    batch_s: int = 60
    """seconds after which a batch ends at the next commit"""
    run_s: int = 600
    """seconds after which a capture run's drain starts no further batch"""
    heartbeat_s: int = 900
    """longest time between two heartbeats of an idle pipeline"""
    park_after: int = 3
    """failed runs after which a table with a RETRY error is parked"""
    unpark_retry_s: int = 3600
    """how often a table parked after RETRY errors is tried again"""
    chunk_rows: int = 50_000
    """rows of a backfill's first chunk; default of the form"""
    chunk_s: int = 10
    """target duration of a chunk, which sets the rows of the next one; three times as long if it is read by pages"""
    readers: int = 2
    """tasks that read a backfill at the same time; default of the form"""
    join_wait_s: int = 300
    """how long a backfill waits for transactions older than the table's capture or mark"""
    filter_s: int = 3600
    """longest statement of a backfill with a row filter"""
    file_settle_s: int = 600
    """time after a change of the file in which its older text counts as a lagging worker"""
    parked_bytes: int = 10 * 2**30
    """staging older than `staging_days` that parked tables may keep before maintenance reports an error"""
    backfill_idle_s: int = 86_400
    """time without a reader after which an open backfill is closed"""


def _or_alone(option: str, section: type[_Section]) -> BeforeValidator:
    """Accepts a text as the value of one option of the section."""
    return BeforeValidator(
        lambda value: {option: value} if isinstance(value, str) else value, json_schema_input_type=str | section
    )


class PipelineFile(_Section):
    """One YAML file. Each option is checked by itself, then the options that may contradict each other."""

    pipeline: PipelineName = ""
    """name of the pipeline, used for its DAGs, its folder in the lake and its rows in the ledger"""
    source: SourceSection
    """the database whose changes are captured"""
    tables: Annotated[
        tuple[Annotated[TableEntry, _or_alone("name", TableEntry)], ...], Field(json_schema_extra={"minItems": 1})
    ]
    """the tables to capture: names, patterns, or entries with options"""
    lake: Annotated[LakeSection, _or_alone("root", LakeSection)]
    """location of the Delta tables and staging: `{root, connection}`, or only the root"""
    ledger: LedgerSection = LedgerSection()
    """the database that holds the ledger"""
    spark: SparkSection = SparkSection()
    """connection and settings of Spark"""
    schedule: Schedule | None = "*/5 * * * *"
    """cron expression or Airflow preset of the capture DAG; null for none"""
    evolve: Evolve = "follow"
    """reaction to a change of a table's definition: `follow`, `ask` (the table waits until somebody un-parks it) or
    `freeze` (the table waits until this option changes)"""
    auto_backfill: Flag = False
    """whether a capture run starts the backfill of a table that needs one; a table in another shape always gets its
    backfill"""
    mask_salt_connection: Connection | None = Field(default=None, validate_default=True)
    """Airflow connection whose password is the salt of `sha256` masks"""
    alerts: Alerts = Alerts()
    """receiver and thresholds of alerts, see below"""
    merge: Merge = Merge()
    """times of merges and number of Spark applications, see below"""
    follow: Annotated[Follow | None, _or_alone("every", Follow)] = None
    """whether a run follows the source until the next one is due, and how often it stages and merges, see below"""
    maintenance: Maintenance = Maintenance()
    """schedule of clean-ups and retention times, see below"""
    bounds: BoundsSection = BoundsSection()
    """bounds and times, see below"""

    @field_validator("tables")
    @classmethod
    def _entries_agree(cls, entries: tuple[TableEntry, ...], info: ValidationInfo) -> tuple[TableEntry, ...]:
        if not entries:
            raise ValueError("must be a list with at least one table or pattern")
        problems: list[Contradiction] = [
            ((number, option), text) for number, entry in enumerate(entries) for option, text in entry.contradictions()
        ]
        rules = table_rules(entries, info.context)
        first: dict[str, TableRule] = {}
        for number, rule in enumerate(rules):
            earlier = first.setdefault(rule.pattern, rule)
            if earlier is not rule:
                problems.append(
                    ((number,), f"{rule.pattern} is already in line {earlier.line}; write one entry for it")
                )
        distinct = TableRules(tuple(first.values()))
        for number, rule in enumerate(rules):
            if rule.exact and first[rule.pattern] is rule:
                (schema, _), (name, _) = split_pattern(rule.pattern)
                problems += [
                    ((number,), f"the entries that match {rule.pattern} contradict each other: {conflict}")
                    for conflict in distinct.conflicts(TableName(schema, name))
                ]
        _refuse(problems)
        return entries

    @field_validator("mask_salt_connection")
    @classmethod
    def _hashes_have_a_salt(cls, salt: str | None, info: ValidationInfo) -> str | None:
        hashed = [n for n, entry in enumerate(info.data.get("tables", ())) if "sha256" in entry.mask.values()]
        if salt is None and hashed:
            _refuse([((hashed[0],), "mask sha256 needs mask_salt_connection: without a salt it can be guessed")])
        return salt

    @field_validator("follow")
    @classmethod
    def _follows_in_one_application(cls, follow: Follow | None, info: ValidationInfo) -> Follow | None:
        if follow is not None and info.data.get("schedule", "") is None:
            raise ValueError('needs a schedule: a run follows until the next one is due; "@continuous" is one')
        if follow is not None and info.data.get("merge", Merge()).applications != 1:
            raise ValueError("needs merge.applications: 1, since a run that follows has one Spark application")
        return follow


# Section -> its model; "" is the file itself.
SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "": PipelineFile,
    "source": SourceSection,
    "tables[]": TableEntry,
    "lake": LakeSection,
    "ledger": LedgerSection,
    "spark": SparkSection,
    "alerts": Alerts,
    "merge": Merge,
    "follow": Follow,
    "maintenance": Maintenance,
    "bounds": BoundsSection,
}


def descriptions(section: type[BaseModel]) -> dict[str, str]:
    """Option -> the text below it, for the section's own options. It parses the source only when it is called:
    every start of a task imports this module."""
    (definition,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        ast.unparse(option.target): " ".join(ast.literal_eval(text.value).split())
        for option, text in pairwise(definition.body)
        if isinstance(option, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def table_rules(entries: Sequence[TableEntry], lines: Any) -> tuple[TableRule, ...]:
    return tuple(entry.rule(lines["tables", number]) for number, entry in enumerate(entries))


def _refuse(problems: Sequence[Contradiction]) -> None:
    """Raises ValidationError with all contradictions, if there are any."""
    if problems:
        raise ValidationError.from_exception_data(
            "tables",
            [
                InitErrorDetails(
                    type=PydanticCustomError("contradiction", "{text}", {"text": text, "place": ("tables", *place)}),
                    input=None,
                )
                for place, text in problems
            ],
        )
