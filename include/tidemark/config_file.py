"""One pipeline file (include/pipelines/<name>.yaml) -> `PipelineConfig`, or every problem of the file at once.

    pipeline: shop                 # default: the file's stem
    source: {connection: shop_source, slot: tidemark_shop, publication: tidemark_shop, manage_publication: true}
    tables:
      - shop.*                     # a name or a pattern
      - name: shop.customers
        leave_out: [notes]
        mask: {email: sha256}
        target: {price: "decimal(20,4)", doc: text}
    lake: ../../.tidemark/lake     # URI, absolute path, or relative to this file's folder
    ledger: {connection: tidemark_ledger}
    spark: {connection: spark_default, conf: {spark.driver.memory: 1g}}
    schedule: "*/5 * * * *"
    alerts: {notifier: our_notifiers.Telling, max_lag_s: 1800}
    merge: {every: 10m, rows: 20000}
    maintenance: {staging_days: 14}
    bounds: {batch_rows: 100000}

The file is read as YAML nodes rather than as values, because nodes know their lines: every problem reads `file:line:
what`, and an unknown key comes with the known one that it resembles. Nothing is looked up here, neither tables nor
connections; what needs the source is preflight's. All entries of `tables` that match a table hold for it together; two
that say different things of one column are a problem, here where both can be compared by name, else in preflight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tidemark.config import Alerts, Bounds, Evolve, Maintenance, Merge, PipelineConfig, TableRule, split_pattern
from tidemark.errors import PipelineFileInvalid
from tidemark.names import TableName
from tidemark.yaml_nodes import NodeReader, Problem, did_you_mean, is_null, kind

_Loader: Final[type[Any]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_ZERO_ALLOWED: Final = ("wait_s",)

_PIPELINE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SLOT_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_TIME: Final = re.compile(r"(\d{1,9})\s*([smhd])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_EVERY_S: Final = (60, 86_400)
# Names of Spark's and Hadoop's settings whose values are secrets; a file or a provider that has one is none.
_SECRET_SETTING: Final = re.compile(
    r"(secret([.-]?key)?|password|passphrase|token|account\.key(\.[\w.-]+)?|sas\.[\w.-]+)$", re.IGNORECASE
)
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")
_OF_OBJECTS: Final = ("s3a://", "gs://", "abfss://")
_READ_IN_TWO_WAYS: Final = re.compile(r"[%?#]|//")


def files(folder: Path | str) -> list[Path]:
    """The pipeline files of a folder, in the order of their names."""
    return sorted(path for path in Path(folder).iterdir() if path.suffix in (".yaml", ".yml") and path.is_file())


def load(path: Path | str) -> PipelineConfig:
    """Read one file. Raises PipelineFileInvalid with every problem that the file has."""
    config, problems = read(path)
    if config is None or problems:
        raise _invalid(problems)
    return config


def load_all(folder: Path | str) -> list[PipelineConfig]:
    """Read every file of a folder. Raises PipelineFileInvalid with the problems of all
    files, and those between them."""
    configs, problems = read_all(folder)
    if problems:
        raise _invalid(problems)
    return configs


def read_all(folder: Path | str) -> tuple[list[PipelineConfig], list[Problem]]:
    """The sound files of a folder, and the problems of the others: so that one broken file
    does not stop the other pipelines.

    Of two files that contradict each other (one name, one slot, one managed publication) the first by file name counts.
    """
    configs: list[PipelineConfig] = []
    problems: list[Problem] = []
    for path in files(folder):
        config, file_problems = read(path)
        if config is not None and not file_problems:
            file_problems = [Problem(config.path, 0, sentence) for sentence in _clashes(config, configs)]
            if not file_problems:
                configs.append(config)
        problems += file_problems
    return configs, problems


def read(path: Path | str) -> tuple[PipelineConfig | None, list[Problem]]:
    """Read one file: its config and no problem, or None and its problems in the order of their lines."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as unreadable:
        return None, [Problem(str(path), 0, f"cannot be read: {unreadable.strerror}")]
    except UnicodeDecodeError:
        return None, [Problem(str(path), 0, "is not UTF-8 text")]
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark or broken.context_mark
        return None, [
            Problem(str(path), mark.line + 1 if mark else 0, f"is not YAML: {broken.problem or broken.context}")
        ]
    except yaml.YAMLError as broken:
        return None, [Problem(str(path), 0, f"is not YAML: {broken}")]
    reader = _Reader(path)
    config = reader.pipeline(root)
    problems = sorted(set(reader.problems))
    return (None if problems else config), problems


def _invalid(problems: Sequence[Problem]) -> PipelineFileInvalid:
    return PipelineFileInvalid(problems="\n".join(str(problem) for problem in problems))


def _clashes(config: PipelineConfig, others: Iterable[PipelineConfig]) -> list[str]:
    sentences = []
    for other in others:
        if config.pipeline == other.pipeline:
            sentences.append(f"{other.path} is also named {config.pipeline!r}; give one of them another name")
        if config.source_connection != other.source_connection:
            continue
        if config.slot == other.slot:
            sentences.append(f"{other.path} also reads slot {config.slot!r}; each pipeline needs a slot of its own")
        if config.publication == other.publication and (config.manage_publication or other.manage_publication):
            sentences.append(
                f"{other.path} also uses publication {config.publication!r}; a managed publication belongs to one "
                "pipeline, since each would remove the other's tables from it"
            )
    return sentences


class _Reader(NodeReader):
    """The sections of one file, read into the parts of its `PipelineConfig`."""

    # --- the sections -------------------------------------------------------------------------------------------------

    def pipeline(self, root: Node | None) -> PipelineConfig:
        if root is None:
            self.problem(None, "is empty; it needs at least source, tables and lake")
        top = self.section(root, "")
        name = self.name(top, "pipeline", self.path.stem, _PIPELINE_NAME, "letters, digits, '_' and '-', at most 64")
        source = self.section(top.get("source"), "source")
        default_slot = re.sub(r"[^a-z0-9_]", "_", f"tidemark_{name}".lower())[:63]
        slot = self.name(
            source, "source.slot", default_slot, _SLOT_NAME, "lower-case letters, digits and '_', at most 63"
        )
        spark = self.section(top.get("spark"), "spark")
        lake = self.section_or(top.get("lake"), "lake", "root")
        tables, conf = self.tables(top.get("tables")), self.conf(spark.get("conf"))
        salt = self.connection(top, "mask_salt_connection")
        hashed = [rule for rule in tables if "sha256" in rule.mask.values()]
        if hashed and not salt:
            self.problems.append(
                Problem(
                    str(self.path),
                    hashed[0].line,
                    "mask sha256 needs mask_salt_connection: without a salt it can be guessed",
                )
            )
        return PipelineConfig(
            pipeline=name,
            source_connection=self.connection(source, "source.connection") or "",
            slot=slot,
            publication=self.text(source.get("publication"), "source.publication") or slot,
            manage_publication=self.boolean(source.get("manage_publication"), "source.manage_publication", True),
            tables=tables,
            lake=self.lake(lake.get("root")),
            lake_connection=self.connection(lake, "lake.connection"),
            ledger_connection=self.connection(self.section(top.get("ledger"), "ledger"), "ledger.connection")
            or "tidemark_ledger",
            spark_connection=self.connection(spark, "spark.connection") or "spark_default",
            spark_conf=conf,
            schedule=self.schedule(top, "schedule", "*/5 * * * *"),
            evolve=self.evolve(top.get("evolve")) or "follow",
            auto_backfill=self.boolean(top.get("auto_backfill"), "auto_backfill", False),
            mask_salt_connection=salt,
            filter_role=self.text(source.get("filter_role"), "source.filter_role"),
            alerts=self.alerts(top.get("alerts")),
            merge=self.merge(top.get("merge")),
            maintenance=self.maintenance(top.get("maintenance")),
            bounds=self.bounds(top.get("bounds")),
            path=str(self.path),
        )

    def tables(self, node: Node | None) -> tuple[TableRule, ...]:
        if node is None:
            return ()
        if not isinstance(node, SequenceNode) or not node.value:
            self.problem(node, "tables must be a list with at least one table or pattern")
            return ()
        rules = [rule for entry in node.value if (rule := self.table(entry)) is not None]
        seen: dict[str, TableRule] = {}
        for rule in rules:
            earlier = seen.setdefault(rule.pattern, rule)
            if earlier is not rule:
                self.at(rule.line, f"{rule.pattern} is already in line {earlier.line}; write one entry for it")
        merged = PipelineConfig("", "", "", "", True, tuple(seen.values()), "", "")
        for rule in seen.values():
            if rule.exact:
                (schema, _), (name, _) = split_pattern(rule.pattern)
                for conflict in merged.conflicts(TableName(schema, name)):
                    self.at(rule.line, f"the entries that match {rule.pattern} contradict each other: {conflict}")
        return tuple(rules)

    def table(self, node: Node) -> TableRule | None:
        line = node.start_mark.line + 1
        entry: dict[str, Node] = {"name": node} if isinstance(node, ScalarNode) else self.section(node, "tables[]")
        pattern = self.text(entry.get("name"), "the name of a table")
        if pattern is None:
            return None
        try:
            split_pattern(pattern)
        except ValueError as wrong:
            self.problem(entry["name"], f'{wrong}; quote a part that holds a dot: schema."a.b"')
            return None
        leave_out = self.column_list(entry.get("leave_out"))
        masks = self.column_map(entry.get("mask"), "mask", allowed=("null", "sha256", "clear"))
        mask = {column: how for column, how in masks.items() if how != "clear"}
        clear = tuple(column for column, how in masks.items() if how == "clear")
        target = self.column_map(entry.get("target"), "target")
        for column in leave_out:
            if column in masks or column in target:
                self.problem(
                    entry["leave_out"], f"column {column!r} of {pattern} is left out and has a mask or target too"
                )
        for column, type_ in target.items():
            if mask.get(column) == "sha256":
                self.problem(
                    entry["target"], f"column {column!r} of {pattern} has a mask and a target: a hash is always text"
                )
            if not _is_target(type_):
                hint = did_you_mean(type_, ("text", "decimal(p,s)"))
                self.problem(
                    entry["target"],
                    f"target of column {column!r} is {type_!r}; it can be text or decimal(p,s) with p up to 38 and s "
                    f"up to p{hint}",
                )
        evolve = self.evolve(entry.get("evolve"))
        return TableRule(
            pattern, leave_out, cast(dict[str, Literal["null", "sha256"]], mask), target, line, clear, evolve
        )

    def evolve(self, node: Node | None) -> Evolve | None:
        said = self.text(node, "evolve")
        choices = get_args(Evolve)
        if said is not None and said not in choices:
            assert node is not None
            self.problem(node, f"evolve is {said!r}; it can be follow, freeze or ask{did_you_mean(said, choices)}")
            return None
        return cast(Evolve | None, said)

    def alerts(self, node: Node | None) -> Alerts:
        nodes, options = self.section(node, "alerts"), dict[str, Any]()
        if "max_lag_s" in nodes and (max_lag_s := self.integer(nodes["max_lag_s"], "alerts.max_lag_s", least=1)):
            options["max_lag_s"] = max_lag_s
        if "wal_share" in nodes and (wal_share := self.share(nodes["wal_share"], "alerts.wal_share")):
            options["wal_share"] = wal_share
        if "health" in nodes and (health := self.text(nodes["health"], "alerts.health")):
            if health in (choices := ("red", "warn")):
                options["health"] = health
            else:
                hint = did_you_mean(health, choices)
                self.problem(nodes["health"], f"alerts.health is {health!r}; it can be red or warn{hint}")
        return Alerts(notifier=self.notifier(nodes.get("notifier")), **options)

    def merge(self, node: Node | None) -> Merge:
        nodes, numbers = self.section(node, "merge"), dict[str, int]()
        for name in ("rows", "applications", "threads", "timeout_s"):
            number = self.integer(nodes[name], f"merge.{name}", least=1) if name in nodes else None
            if number is not None:
                numbers[name] = number
        return Merge(every_s=self.every(nodes.get("every")), **numbers)

    def every(self, node: Node | None) -> int | None:
        if node is None or is_null(node):
            return None
        form = _TIME.fullmatch(node.value) if isinstance(node, ScalarNode) else None
        if form is None:
            said = repr(node.value) if isinstance(node, ScalarNode) else kind(node)
            self.problem(node, f"merge.every must be a whole number with s, m, h or d, as in 10m, not {said}")
            return None
        seconds = int(form[1]) * _UNIT_S[form[2]]
        least, most = _EVERY_S
        if not least <= seconds <= most:
            self.problem(node, f"merge.every must be from 1m to 1d, not {node.value}")
            return None
        return seconds

    def maintenance(self, node: Node | None) -> Maintenance:
        nodes, numbers = self.section(node, "maintenance"), dict[str, int]()
        for_good = "put_aside_days" in nodes and is_null(nodes["put_aside_days"])
        for name in ("staging_days", "versions_days", *(() if for_good else ("put_aside_days",))):
            number = self.integer(nodes[name], f"maintenance.{name}", least=1) if name in nodes else None
            if number is not None:
                numbers[name] = number
        read = Maintenance(schedule=self.schedule(nodes, "maintenance.schedule", "@daily"), **numbers)
        return replace(read, put_aside_days=None) if for_good else read

    def bounds(self, node: Node | None) -> Bounds:
        numbers = {}
        for name, value in self.section(node, "bounds").items():
            number = self.integer(value, f"bounds.{name}", least=0 if name in _ZERO_ALLOWED else 1)
            if number is not None:
                numbers[name] = number
        return Bounds(**numbers)

    def conf(self, node: Node | None) -> dict[str, str]:
        if node is None:
            return {}
        if not isinstance(node, MappingNode):
            self.problem(node, "spark.conf must be a mapping of Spark settings")
            return {}
        conf = {}
        for key, value in node.value:
            if not isinstance(value, ScalarNode) or value.tag.endswith(":null"):
                self.problem(value, f"spark.conf {key.value} must be a text or a number")
            elif not str(key.value).startswith("spark."):
                self.problem(key, f"spark.conf {key.value!r} is no Spark setting: their names begin with 'spark.'")
            elif _SECRET_SETTING.search(str(key.value)):
                self.problem(
                    key,
                    f"spark.conf {key.value} is a secret, and would stand in spark-submit's command line, which "
                    "everybody on the machine reads: name a connection, lake: {root, connection}, or set it in "
                    "spark-defaults.conf of the machines that run Spark",
                )
            else:
                conf[str(key.value)] = str(value.value)
        return conf

    def lake(self, node: Node | None) -> str:
        text = self.text(node, "lake")
        if text is None:
            return ""
        if text.startswith("file://"):
            text = "/" + text.removeprefix("file://").lstrip("/")
        if "@" in text.partition("://")[2].partition("/")[0] and not text.startswith("abfss://"):
            self.problem(node, "lake.root has no user and no secret in it; name a connection: lake: {root, connection}")
        if text.startswith(("s3://", "s3n://")):
            text = f"s3a://{text.partition('://')[2]}"  # Hadoop's name for it, and one lake has one name
        if text.startswith(_OF_OBJECTS) and _READ_IN_TWO_WAYS.search(text.partition("://")[2].rstrip("/")):
            self.problem(
                node,
                f"lake.root {text!r} has %, ?, # or an empty name in its path, which Spark takes for another folder "
                "than the clients of object stores do: name one without",
            )
        if _URI.fullmatch(text):
            return text.rstrip("/")
        return str((self.path.absolute().parent / text).resolve())

    def schedule(self, section: dict[str, Node], option: str, default: str) -> str | None:
        node = section.get("schedule")
        if node is None:
            return default
        return None if is_null(node) else self.text(node, option, "a cron expression or preset in quotes, or null")

    def notifier(self, node: Node | None) -> str | None:
        if node is None or is_null(node):
            return None
        text = self.text(node, "alerts.notifier")
        if text is not None and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", text):
            self.problem(node, f"alerts.notifier {text!r} is no dotted path of a class")
        return text


def _is_target(text: str) -> bool:
    decimal = _DECIMAL.fullmatch(text)
    return text == "text" or (decimal is not None and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1]))
