"""Reads one pipeline file (include/pipelines/<name>.yaml) into a `PipelineConfig`, or into every problem of the file.

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

The models of `sections` check the values. The YAML nodes give each value its line, so every problem is printed as
`file:line: sentence`. Checks that need the source or a connection are left to preflight. All entries of `tables` that
match a table apply to it together. Two entries that contradict each other are a problem: of the file if one of them
names the table, else in preflight.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from yaml.nodes import MappingNode, Node, SequenceNode

from tidemark.config.pipeline import PipelineConfig
from tidemark.config.problems import KEY, Place, Problem, problem_of
from tidemark.config.sections import Bounds, PipelineFile, table_rules
from tidemark.errors import PipelineFileInvalid

# The largest number of values. An alias counts as all values of its anchor: aliases of aliases would be endless.
_MOST_VALUES: Final = 100_000

_Loader: Final[type[Any]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def files(folder: Path | str) -> list[Path]:
    """The pipeline files of a folder, in the order of their names."""
    return sorted(path for path in Path(folder).iterdir() if path.suffix in (".yaml", ".yml") and path.is_file())


def load(path: Path | str) -> PipelineConfig:
    """Read one file. Raises PipelineFileInvalid with every problem that the file has."""
    config, problems = read(path)
    if config is None or problems:
        raise PipelineFileInvalid(problems="\n".join(str(problem) for problem in problems))
    return config


def read_all(folder: Path | str) -> tuple[list[PipelineConfig], list[Problem]]:
    """The sound files of a folder, and the problems of the others, so that a broken file does not stop the other
    pipelines. If two files conflict (same name, slot or managed publication), the first by file name is used."""
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
    """Read one file. Returns its config without problems, or None and its problems in the order of their lines."""
    path = Path(path)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)
        values = _Values()
        value = None if root is None else values.of(root, ())
    except OSError as unreadable:
        return None, [Problem(str(path), 0, f"cannot be read: {unreadable.strerror}")]
    except UnicodeDecodeError:
        return None, [Problem(str(path), 0, "is not UTF-8 text")]
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark or broken.context_mark
        line = mark.line + 1 if mark else 0
        return None, [Problem(str(path), line, f"is not YAML: {broken.problem or broken.context}")]
    except yaml.YAMLError as broken:
        return None, [Problem(str(path), 0, f"is not YAML: {broken}")]
    except RecursionError:
        return None, [Problem(str(path), 0, "is nested too deeply")]
    if root is None:
        return None, [Problem(str(path), 0, "is empty; it needs at least source, tables and lake")]
    named = {"pipeline": path.stem, **value} if isinstance(value, dict) else value
    config = None
    try:
        config = _config(PipelineFile.model_validate(named, context=values.lines), path, values.lines)
    except ValidationError as invalid:
        unreadable_places = {place for place, _ in values.problems}
        errors = [problem_of(error, value) for error in invalid.errors(include_url=False)]
        values.problems += [(place, sentence) for place, sentence in errors if place not in unreadable_places]
    problems = sorted({Problem(str(path), values.line(place), sentence) for place, sentence in values.problems})
    return (None if problems else config), problems


class _Values:
    """Constructs the values of a file's nodes, and records the line of each value and key."""

    def __init__(self) -> None:
        self.lines: dict[Place, int] = {}
        self.problems: list[tuple[Place, str]] = []

    def line(self, place: Place) -> int:
        """The line of a place, or of the closest enclosing place that the file has."""
        while place not in self.lines:
            place = place[:-1]
        return self.lines[place]

    def of(self, node: Node, place: Place, around: tuple[Node, ...] = ()) -> Any:
        self.lines[place] = node.start_mark.line + 1
        if node in around:
            self.problems.append((place, "an alias stands within what it names"))
            return None
        if len(self.lines) > _MOST_VALUES:
            self.problems = [((), f"is more than {_MOST_VALUES:,} values, aliases included")]
            return None
        around = (*around, node)
        if isinstance(node, SequenceNode):
            return [self.of(entry, (*place, number), around) for number, entry in enumerate(node.value)]
        if isinstance(node, MappingNode):
            return self._mapping(node, place, around)
        return self._scalar(node, place)

    def _mapping(self, node: MappingNode, place: Place, around: tuple[Node, ...]) -> dict[str, Any]:
        by_key: dict[str, Any] = {}
        for key_node, value in node.value:
            key = str(key_node.value)
            if key in by_key:
                self.lines[*place, key, KEY] = key_node.start_mark.line + 1
                self.problems.append(
                    ((*place, key, KEY), f"{key!r} stands twice in {place[-1] if place else 'the file'}")
                )
                continue
            by_key[key] = self.of(value, (*place, key), around)
            self.lines[*place, key, KEY] = key_node.start_mark.line + 1
        return by_key

    def _scalar(self, node: Node, place: Place) -> Any:
        if place[:2] == ("spark", "conf") and len(place) == 3 and not node.tag.endswith(":null"):
            return node.value  # as it is written: 3.10 is no number there
        try:
            return yaml.constructor.SafeConstructor().construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, AttributeError):
            self.problems.append(
                (place, f"{node.value!r} cannot be read as {node.tag.removeprefix('tag:yaml.org,2002:')}")
            )


def default_slot(pipeline: str) -> str:
    """The name of the slot, and of the publication, if the file names none."""
    return re.sub(r"[^a-z0-9_]", "_", f"tidemark_{pipeline}".lower())[:63]


def _config(file: PipelineFile, path: Path, lines: dict[Place, int]) -> PipelineConfig:
    slot = file.source.slot or default_slot(file.pipeline)
    root = file.lake.root
    return PipelineConfig(
        pipeline=file.pipeline,
        source_connection=file.source.connection,
        slot=slot,
        publication=file.source.publication or slot,
        manage_publication=file.source.manage_publication,
        tables=table_rules(file.tables, lines),
        lake=root if "://" in root else str((path.absolute().parent / root).resolve()),
        lake_connection=file.lake.connection,
        ledger_connection=file.ledger.connection,
        spark_connection=file.spark.connection,
        spark_conf=file.spark.conf,
        schedule=file.schedule,
        evolve=file.evolve,
        auto_backfill=file.auto_backfill,
        mask_salt_connection=file.mask_salt_connection,
        alerts=file.alerts,
        merge=file.merge,
        follow=file.follow,
        maintenance=file.maintenance,
        bounds=Bounds(**file.bounds.model_dump()),
        path=str(path),
    )


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
