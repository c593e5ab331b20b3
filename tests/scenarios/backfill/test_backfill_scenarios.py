"""Every tests/scenarios/backfill/*.sql is one test: what happens around a chunk, at a source whose commits can hang.

All but a few share one pipeline and one backfill of all their tables; each has the same steps. At the end everything
is backfilled once more, and nothing may be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.services.postgres import PostgresServer, running
from tests.support import scenario
from tests.support.capture import Environment
from tests.support.hung_commit import SERVER_SETTINGS
from tests.support.playing import play, rules
from tests.support.thorough import thorough

FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.sql"))}
# Each takes long, or another scenario or test keeps its promise in `make test`.
FOR_MAKE_FAULTS = {
    "another_hand_in_the_lake",
    "another_table_under_the_chunk",  # tests/capture/test_claims.py
    "column_dropped_and_added_again",
    "column_replaced_before_the_first_change",
    "column_replaced_in_one_statement",  # ../column_dropped_and_added_again.sql
    "exported_snapshot",  # tests/backfill/test_exported_snapshot.py
    "out_of_the_publication_and_back",  # tests/capture/definitions/test_changes_of_tables.py, and `altered_by_hand`
}
BOUNDS = {"lock_timeout_s": 3, "join_wait_s": 60}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with running(tmp_path_factory.mktemp("hanging"), 18, fsync="off", **SERVER_SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def shared_outcome(
    request: pytest.FixtureRequest, new_environment: Callable[..., Environment], server: PostgresServer
) -> dict[str, BaseException | None]:
    """What became of the selected scenarios that share a pipeline."""
    here = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    selected = [item.callspec.params["name"] for item in here]
    sharing = [s for name in FILES if name in selected and not (s := scenario.read(FILES[name])).needs_its_own_pipeline]
    rules_of_all = tuple(rule for one in sharing for rule in rules(one))
    return play(new_environment("filled", rules_of_all, BOUNDS, server=server), sharing)


@pytest.mark.parametrize("name", [*sorted(FILES.keys() - FOR_MAKE_FAULTS), *thorough(*sorted(FOR_MAKE_FAULTS))])
def test_scenario(
    name: str, request: pytest.FixtureRequest, new_environment: Callable[..., Environment], server: PostgresServer
) -> None:
    read = scenario.read(FILES[name])
    if read.needs_its_own_pipeline:
        outcome = play(new_environment(name, rules(read), {**BOUNDS, **read.bounds}, server=server), [read])
    else:
        outcome = request.getfixturevalue("shared_outcome")
    if (failed := outcome[name]) is not None:
        raise failed
