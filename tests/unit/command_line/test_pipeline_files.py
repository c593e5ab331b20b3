"""How the command line finds a pipeline's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.command_line.invocation import find_file
from tidemark.errors import PipelinesNotFound, PipelineUnknown

FILE = "source: {connection: stock}\ntables: [public.*]\nlake: /lake\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of pipeline files, seen from somewhere else."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "pipelines"
    for each in (elsewhere, folder):
        each.mkdir()
    (folder / "shop.yaml").write_text(f"pipeline: web_shop\n{FILE}")
    monkeypatch.chdir(elsewhere)
    return folder


@pytest.mark.parametrize("given", ["shop.yaml", "shop", "web_shop"])
def test_a_pipeline_is_given_by_its_file_or_its_name_from_any_folder(folder: Path, given: str) -> None:
    assert find_file(given, {"TIDEMARK_PIPELINES": str(folder)}) == folder / "shop.yaml"


def test_a_file_of_this_folder_comes_first(folder: Path) -> None:
    Path("shop.yaml").write_text(FILE)
    assert find_file("shop.yaml", {"TIDEMARK_PIPELINES": str(folder)}) == Path("shop.yaml")


def test_the_error_says_which_variable_is_missing_or_wrong(folder: Path) -> None:
    with pytest.raises(PipelinesNotFound, match="There is no folder of pipeline files: TIDEMARK_PIPELINES is not set"):
        find_file("shop.yaml", {})
    with pytest.raises(PipelinesNotFound, match="TIDEMARK_PIPELINES names /nowhere"):
        find_file("shop", {"TIDEMARK_PIPELINES": "/nowhere"})
    with pytest.raises(PipelineUnknown, match=r"has shop, web_shop \(did you mean web_shop\?\)"):
        find_file("web_shp", {"TIDEMARK_PIPELINES": str(folder)})
