"""The JSON Schema in docs/ is generated from the models, and accepts and refuses the files that the reader does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.unit.test_architecture import REPOSITORY
from tidemark.config import file_reader, json_schema
from tidemark.config.sections import SECTIONS, descriptions

COMMITTED = REPOSITORY / "docs" / "pipeline.schema.json"
EXAMPLE = (REPOSITORY / "docs" / "configuration.md").read_text().partition("```yaml\n")[2].partition("```")[0]
FILES = [
    *sorted((REPOSITORY / "include" / "pipelines").glob("*.yaml")),
    *Path(__file__).parent.glob("pipelines/*.yaml"),
]
LEAST = "source: {connection: a}\ntables: [shop.*]\nlake: /lake\n"


def errors(text: str) -> list[str]:
    found = Draft202012Validator(json.loads(COMMITTED.read_text())).iter_errors(yaml.safe_load(text))
    return [error.message for error in found]


def test_the_committed_schema_is_current() -> None:
    Draft202012Validator.check_schema(json_schema.schema())
    assert json.loads(COMMITTED.read_text()) == json_schema.schema(), (
        "python -m tidemark.config.json_schema > docs/pipeline.schema.json"
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(REPOSITORY)))
def test_a_pipeline_file_of_the_project_is_valid(file: Path) -> None:
    assert len(FILES) > 1
    assert errors(file.read_text()) == []


@pytest.mark.parametrize("more", ["", "merge: {every: 10m}", "schedule: null", "ledger: {}"])
def test_a_sound_file_is_valid(more: str, tmp_path: Path) -> None:
    for text in (LEAST + more, EXAMPLE):
        assert errors(text) == []
        (tmp_path / "shop.yaml").write_text(text)
        assert file_reader.read(tmp_path / "shop.yaml")[1] == []


@pytest.mark.parametrize(
    "more",
    [
        "bound: {}",
        "bounds: {park_after: 5}",
        "bounds: {batch_rows: 0}",
        "bounds: {batch_rows: soon}",
        "evolve: frozen",
        "merge: {every: soon}",
        "alerts: {wal_share: 7}",
        "alerts: {notifier: mail}",
        "pipeline: a/b",
        "ledger: {connection: 'postgres://u:p@h/d'}",
        "tables: []",
        "tables: [{leave_out: [a]}]",
        "tables: [{name: s.t, mask: {a: md5}}]",
        "tables: [{name: s.t, target: {a: decimal}}]",
        "lake: {connection: a}",
    ],
)
def test_a_file_that_the_reader_refuses_is_invalid(more: str, tmp_path: Path) -> None:
    rest = "".join(line for line in LEAST.splitlines(keepends=True) if line.split(":")[0] != more.split(":")[0])
    (tmp_path / "shop.yaml").write_text(rest + more)
    assert len(errors(rest + more)) == 1
    assert len(file_reader.read(tmp_path / "shop.yaml")[1]) == 1


def test_an_editor_shows_what_each_option_means() -> None:
    schema = json.loads(COMMITTED.read_text())
    for name, section in SECTIONS.items():
        definition = schema["$defs"][section.__name__] if name else schema
        described = {option: shown["description"] for option, shown in definition["properties"].items()}
        assert described == descriptions(section)
        assert described.keys() == section.model_fields.keys()


def test_the_demos_file_names_the_schema_for_editors() -> None:
    file = REPOSITORY / "include" / "pipelines" / "shop.yaml"
    (named,) = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", file.read_text(), re.MULTILINE)
    assert (file.parent / named).resolve() == COMMITTED
