"""Plays the tests of PostgreSQL's logical decoding, scripts and isolation specifications, without their own slots.

The tests read their changes from slots of the plugin test_decoding, which a server need not have. A statement that
calls a function of slots or of replication origins is left out and counted, since its error would undo the
transaction around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.witnesses.captured_database import TableVerdict
from tests.witnesses.isolation_spec import IsolationSpec
from tests.witnesses.isolation_suite import IsolationSuite
from tests.witnesses.psql_script import pieces
from tests.witnesses.regression_suite import RegressionSuite

EXCLUDED_DECODING: Final = {
    "slot": "creates, copies and drops slots, and changes no table that is kept",
    "stats": "waits for the statistics of its own slots",
}
EXCLUDED_DECODING_SPECS: Final = {
    "slot_creation_error": "cancels the creation of slots, and changes no table",
}
_OF_SLOTS: Final = re.compile(
    r"\bpg_(create|copy|drop)_\w*replication_slot\b|\bpg_logical_slot_\w+|\bpg_replication_(slot|origin)_\w+"
    r"|\bpg_\w*replslot\w*|\bslot_changes_wrapper\b|\bpg_sync_replication_slots\b",
    re.IGNORECASE,
)


def without_slots(statements: str) -> tuple[str, int]:
    """The statements that call no function of slots, and how many others there are."""
    parts = list(pieces(statements))
    kept = [part for part in parts if not _OF_SLOTS.search(part)]
    return "".join(kept), len(parts) - len(kept)


@dataclass
class DecodingSuite(RegressionSuite):
    """Each script has a schema of its own."""

    left_out: int = 0  # pieces

    def files(self, chosen: Iterable[str] = ()) -> list[str]:
        names = sorted(file.stem for file in (self._folder / "sql").glob("*.sql"))
        return [name for name in names if name not in EXCLUDED_DECODING and (not chosen or name in set(chosen))]

    @property
    def _folder(self) -> Path:
        return self.source_tree / "contrib" / "test_decoding"

    def set_up(self) -> None:
        self.database.begin("FOR ALL TABLES", has_trigger=self.has_trigger)

    def covered(self) -> dict[str, int]:
        return {**super().covered(), "pieces left out that are about slots or origins": self.left_out}

    def play(self, files: Iterable[str]) -> Iterator[TableVerdict]:
        for name in files:
            self.database.environment.execute(f"CREATE SCHEMA decoding_{name}")
            yield from super().play([name])
            self.database.drop_schemas(self.database.schemas_of_files())

    def _parts(self, name: str) -> list[str]:
        kept = [without_slots(part) for part in super()._parts(name)]
        self.left_out += sum(count for _, count in kept)
        return [part for part, _ in kept if part]

    def _options(self, name: str) -> str:
        return f"-c search_path=decoding_{name},public"


@dataclass
class DecodingSpecsSuite(IsolationSuite):
    """A step of which nothing is left is sent as an empty statement."""

    left_out: dict[str, int] = field(default_factory=dict)  # by file

    def files(self, chosen: Iterable[str] = ()) -> list[str]:
        names = sorted(file.stem for file in self._folder.glob("*.spec"))
        return [name for name in names if name not in EXCLUDED_DECODING_SPECS and (not chosen or name in set(chosen))]

    @property
    def _folder(self) -> Path:
        return self.source_tree / "contrib" / "test_decoding" / "specs"

    def covered(self) -> dict[str, int]:
        return {**super().covered(), "pieces left out that are about slots": sum(self.left_out.values())}

    def _spec(self, file: str) -> IsolationSpec:
        spec = super()._spec(file)
        self.left_out[file] = 0

        def kept(statements: str) -> str:
            without, count = without_slots(statements)
            self.left_out[file] += count
            return without

        sessions = [
            replace(
                session,
                setup=[*map(kept, session.setup)],
                steps={name: kept(text) for name, text in session.steps.items()},
                teardown=[*map(kept, session.teardown)],
            )
            for session in spec.sessions
        ]
        return replace(spec, setup=[*map(kept, spec.setup)], sessions=sessions)
