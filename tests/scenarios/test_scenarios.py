"""Every tests/scenarios/*.sql is one test; `tests/support/scenario.py` says how to read and write them.

Scenarios that ask for nothing special share one pipeline, each in a schema of its own, and go through its runs in
step: one run merges the tables of all of them. With `-k name` a scenario has the pipeline for itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import scenario
from tests.support.capture import Environment
from tests.support.playing import play, rules

FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.sql"))}


@pytest.fixture(scope="module")
def shared_outcome(
    request: pytest.FixtureRequest, new_environment: Callable[..., Environment]
) -> dict[str, BaseException | None]:
    """What became of the selected scenarios that share a pipeline."""
    here = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    selected = [item.callspec.params["name"] for item in here]
    sharing = [s for name in FILES if name in selected and not (s := scenario.read(FILES[name])).needs_its_own_pipeline]
    environment = new_environment("shared", tuple(rule for one in sharing for rule in rules(one)))
    return play(environment, sharing)


@pytest.mark.parametrize("name", FILES)
def test_scenario(name: str, request: pytest.FixtureRequest, new_environment: Callable[..., Environment]) -> None:
    read = scenario.read(FILES[name])
    if read.needs_its_own_pipeline:
        outcome = play(new_environment(name, rules(read), read.bounds), [read])
    else:
        outcome = request.getfixturevalue("shared_outcome")
    if (failed := outcome[name]) is not None:
        raise failed
