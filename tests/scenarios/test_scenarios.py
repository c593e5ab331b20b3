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
from tests.support.thorough import thorough

FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.sql"))}
# Each has a pipeline for itself, and what is named beside it keeps its promise in `make test`.
FOR_MAKE_FAULTS = {
    "backlog_of_many_batches",  # tests/capture/test_drain.py
    "big_transaction_is_one_batch",  # the same
    # `column_dropped_while_the_merge_dies`, and tests/target/test_columns_come_and_go.py
    "column_with_default_while_the_merge_dies",
    "killed_at_every_step",  # tests/faults/test_killed_at_every_failpoint.py
    "partition_created_unlogged",  # tests/definitions/test_definition_changes.py, and `partition_unlogged`
    "table_dropped_and_created_again",  # tests/capture/definitions/test_places.py
    "tables_made_within_a_batch",  # tests/definitions/test_single_changes.py
    "traffic_of_other_tables",  # tests/capture/test_drain.py, and `idle_run`
    "valve",  # tests/capture/test_drain.py and test_confirm.py
}


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


@pytest.mark.parametrize("name", [*sorted(FILES.keys() - FOR_MAKE_FAULTS), *thorough(*sorted(FOR_MAKE_FAULTS))])
def test_scenario(name: str, request: pytest.FixtureRequest, new_environment: Callable[..., Environment]) -> None:
    read = scenario.read(FILES[name])
    if read.needs_its_own_pipeline:
        outcome = play(new_environment(name, rules(read), read.bounds), [read])
    else:
        outcome = request.getfixturevalue("shared_outcome")
    if (failed := outcome[name]) is not None:
        raise failed
