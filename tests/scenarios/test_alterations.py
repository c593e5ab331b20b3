"""Every tests/scenarios/alterations/*.sql is what somebody alters at the source, and is played in four places: between
two runs, in the middle of a batch, while a merge is killed, while a chunk is read. All tables of a place share a
pipeline.

A file says in parts what there is, which rows, a change from before the alteration, it, and changes behind it, then the
outcome: one expectation per line, for all places or `in` some. Behind a chunk, and the backfill that the outcome may
ask for, each table is merged; a chunk from before the alteration is `read again` where the file says for which
reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from sandbox.services.postgres import PostgresServer, running
from tests.support import scenario
from tests.support.capture import Environment
from tests.support.hung_commit import SERVER_SETTINGS
from tests.support.playing import play, rules

pytestmark = pytest.mark.thorough

FOLDER = Path(__file__).parent / "alterations"
FILES = sorted(path.stem for path in FOLDER.glob("*.sql"))
# What comes of it in some of the places, where that is not what comes of it in the others.
OUTCOME_IN = re.compile(r"-- outcome in (?P<places>[a-z_, ]+): (?P<outcome>.*)")
PARTS = ("table", "rows", "before", "alteration", "after")
PLACES = {
    "between_runs": """{table}
-- step: run
{rows}
-- step: run
{alteration}
{after}
-- step: run
{outcome}
""",
    "mid_batch": """{table}
-- step: run
{rows}
-- step: run
{before}
{alteration}
{after}
-- step: run
{outcome}
""",
    "while_a_merge_dies": """-- alone
{table}
-- step: run
{rows}
-- step: run
{before}
-- step: drain
-- step: crash at merge.after_history
{alteration}
{after}
-- step: run
{outcome}
""",
    "while_a_chunk_is_read": """{table}
{rows}
-- step: run
-- step: plan
-- at: high item
{before}
{alteration}
{after}
-- step: read
-- step: end backfill
{rejected}
-- step: read
-- step: end backfill
{seen}
-- step: run
{seen}
-- step: backfill wanted
{mended}
-- step: run
""",
}


def read_parts(name: str, place: str) -> dict[str, str]:
    lines = (FOLDER / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    parts: dict[str, list[str]] = {"head": [], "outcome": [], "again": []}
    of_place: list[str] = []
    at = "head"
    for line in lines:
        if line.startswith("-- part: "):
            at = line.removeprefix("-- part: ")
            assert at in PARTS, line
            parts[at] = []
        elif line.startswith("-- outcome: "):
            parts["outcome"].append(line.replace("outcome", "expect", 1))
        elif match := OUTCOME_IN.fullmatch(line):
            if place in match["places"].split(", "):
                of_place.append(f"-- expect: {match['outcome']}")
        elif line.startswith("-- read again: "):
            parts["again"].append(f"-- expect: backfill open item ({line.removeprefix('-- read again: ')})")
        else:
            parts[at].append(line)
    if of_place:
        parts |= {"outcome": of_place, "again": []}
    assert set(parts) == {"head", "outcome", "again", *PARTS}, f"{name}.sql lacks a part"
    return {part: "\n".join(text) for part, text in parts.items()}


def is_merged_in_the_end(name: str) -> bool:
    """Of what parks a table, or makes another one of it, no chunk is followed by a merge; nor where the file says why
    there is none."""
    parts = read_parts(name, "while_a_chunk_is_read")
    outcome = parts["outcome"]
    if "-- no chunk: " in parts["head"]:
        return False
    return "parked" not in outcome and "marked" not in outcome


CASES = [
    (place, name)
    for place in PLACES
    for name in FILES
    if place != "while_a_chunk_is_read" or is_merged_in_the_end(name)
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """With a tablespace `elsewhere`, and transactions that can be prepared."""
    settings = {"fsync": "off", "max_prepared_transactions": "5", "allow_in_place_tablespaces": "on", **SERVER_SETTINGS}
    with running(tmp_path_factory.mktemp("altered"), 18, **settings) as started:
        with psycopg.connect(started.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE TABLESPACE elsewhere LOCATION ''")
        yield started


@pytest.fixture(scope="module")
def outcome_in(
    request: pytest.FixtureRequest,
    new_environment: Callable[..., Environment],
    server: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], dict[str, BaseException | None]]:
    """What became of the selected alterations in a place, which are all played at once, once."""
    here = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    selected = [(item.callspec.params["place"], item.callspec.params["name"]) for item in here]
    outcomes: dict[str, dict[str, BaseException | None]] = {}

    def played(place: str) -> dict[str, BaseException | None]:
        if place not in outcomes:
            folder = tmp_path_factory.mktemp(place)
            scenarios = [written(folder, place, name) for at, name in selected if at == place]
            named = tuple(rule for one in scenarios for rule in rules(one))
            outcomes[place] = play(new_environment(place, named, server=server), scenarios)
        return outcomes[place]

    return played


def written(folder: Path, place: str, name: str) -> scenario.Scenario:
    parts = read_parts(name, place)
    marks = [line for line in parts["outcome"].splitlines() if "needs backfill" in line]
    seen, rejected = "\n".join(marks), "\n".join([*marks, parts["again"]])
    mended = sorted({line.split()[4] for line in marks} or {"item"})
    parts |= {"seen": seen, "rejected": rejected, "mended": "\n".join(f"-- expect: merging {t}" for t in mended)}
    path = folder / f"{name}.sql"
    path.write_text(f"{parts['head']}\n{PLACES[place].format(**parts)}", encoding="utf-8")
    return scenario.read(path)


@pytest.mark.parametrize(("place", "name"), CASES)
def test_alteration(place: str, name: str, outcome_in: Callable[[str], dict[str, BaseException | None]]) -> None:
    if (failed := outcome_in(place)[name]) is not None:
        raise failed
