"""Guards against a table whose columns are renamed, swapped, dropped and added at random: a simulation knows which
attnum each name is at every moment, `resolve` knows what two looks show, and nothing guarded is ever in clear."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from tidemark.config import TableRule
from tidemark.schema.guards import Guard, bind, in_names, inherited, resolve, unfit

PEOPLE = "public.people"
RULE = TableRule("public.*", leave_out=("notes",), mask={"email": "sha256", "phone": "null"})
ROWS = {1: ("id", 7), 2: ("email", 7), 3: ("phone", 7), 4: ("notes", 7), 5: ("town", 7)}


def test_what_the_file_names_is_bound_and_what_is_renamed_inherits() -> None:
    bound = bind({}, PEOPLE, ROWS, RULE)
    assert {attnum: guard.how for attnum, guard in bound.items()} == {2: "sha256", 3: "null", 4: "leave_out"}
    renamed = {**ROWS, 2: ("mail", 8), 4: ("remarks", 8)}
    heirs = bind(bound, PEOPLE, renamed, RULE)
    assert {attnum: guard.how for attnum, guard in heirs.items()} == {2: "null", 3: "null", 4: "leave_out"}
    assert set(inherited(PEOPLE, renamed, heirs)) == {"mail", "remarks"}
    named = replace(RULE, mask={"mail": "sha256", "phone": "null"})
    assert bind(heirs, PEOPLE, renamed, named)[2] == Guard("sha256", PEOPLE, "mail")


def test_a_guard_goes_where_the_file_takes_it_back_or_says_clear_and_only_then() -> None:
    bound = bind({}, PEOPLE, ROWS, RULE)
    silent = TableRule("public.*")
    assert bind(bound, PEOPLE, ROWS, silent) == {}
    renamed = {**ROWS, 2: ("mail", 8)}
    assert set(bind(bound, PEOPLE, renamed, silent)) == {2}, "the file has not named the column as it is called now"
    assert bind(bound, "public.persons", ROWS, silent).keys() == bound.keys(), "nor the table"
    assert set(bind(bound, PEOPLE, renamed, replace(silent, clear=("mail",)))) == {2} - {2}


def test_a_table_renamed_under_a_pattern_keeps_what_its_own_entry_said() -> None:
    bound = bind(bind({}, PEOPLE, ROWS, RULE), "public.persons", ROWS, TableRule("public.*"))
    placed = in_names(TableRule("public.*"), [(a, name) for a, (name, _) in ROWS.items()], bound)
    assert (placed.leave_out, placed.mask) == (("notes",), {"email": "null", "phone": "null"})


def test_a_column_of_the_tables_own_entry_fits_by_name_or_by_heritage() -> None:
    bound = bind({}, PEOPLE, ROWS, RULE)
    renamed = {**ROWS, 2: ("mail", 8)}
    assert unfit(["email", "phone"], PEOPLE, (), renamed, bind(bound, PEOPLE, renamed, RULE)) == []
    dropped = {attnum: row for attnum, row in ROWS.items() if attnum != 2}
    assert unfit(["email", "phone"], PEOPLE, (), dropped, bound) == ["email"]
    assert unfit(["emial"], PEOPLE, (), ROWS, bound) == ["emial"]


@dataclass
class Table:
    """The source's table: a history of moments, each with its rows and the attnums that ever had a guarded name."""

    chance: random.Random
    rows: dict[int, tuple[str, int]] = field(default_factory=lambda: dict(ROWS))
    last: int = 5
    xid: int = 10

    def alter(self) -> None:
        self.xid += 1
        names = [name for name, _ in self.rows.values()]
        match self.chance.randrange(4):
            case 0 | 1:
                attnum = self.chance.choice(list(self.rows))
                free = [n for n in ("email", "phone", "notes", "town", "mail", "x", "y") if n not in names]
                if free:
                    self.rows[attnum] = (self.chance.choice(free), self.xid)
            case 2:
                if len(self.rows) > 2:
                    del self.rows[self.chance.choice(list(self.rows))]
            case _:
                free = [n for n in ("email", "phone", "notes", "town", "mail", "x", "y") if n not in names]
                if free:
                    self.last += 1
                    self.rows[self.last] = (self.chance.choice(free), self.xid)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_altered_between_two_looks_no_guarded_column_is_in_clear(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        table = Table(chance)
        bound = bind({}, PEOPLE, table.rows, RULE)
        before = dict(table.rows)
        guarded = set(bound)
        for _ in range(chance.randint(1, 4)):
            messages = []
            for _ in range(chance.randint(0, 3)):
                table.alter()
                if chance.random() < 0.5:
                    messages.append(dict(table.rows))
            after = dict(table.rows)
            bound = bind(bound, PEOPLE, after, RULE)
            guarded |= set(bound)
            for moment in messages:
                names = [name for name, _ in moment.values()]
                resolved = resolve(RULE, PEOPLE, names, before, after, bound)
                bound |= resolved.new_guards
                guarded |= {a for a, (name, _) in moment.items() if name in ("email", "phone", "notes")}
                hidden = {*resolved.leave_out, *resolved.mask}
                in_clear = {a for a, (name, _) in moment.items() if name not in hidden}
                assert in_clear.isdisjoint(guarded), (before, moment, after)
            before = after


def test_what_was_not_touched_is_captured_as_it_is() -> None:
    bound = bind({}, PEOPLE, ROWS, RULE)
    after = {**ROWS, 2: ("mail", 8), 6: ("more", 9)}
    bound = bind(bound, PEOPLE, after, RULE)
    resolved = resolve(RULE, PEOPLE, ["id", "email", "phone", "notes", "town"], ROWS, after, bound)
    assert (resolved.mask, resolved.new_guards) == ({"email": "sha256", "phone": "null"}, {})
    resolved = resolve(RULE, PEOPLE, ["id", "mail", "phone", "notes", "town"], ROWS, after, bound)
    assert resolved.mask == {"mail": "null", "phone": "null"}
    after = {**ROWS, 6: ("more", 9)}
    resolved = resolve(
        RULE, PEOPLE, ["id", "email", "phone", "notes", "town", "more"], ROWS, after, bind({}, PEOPLE, after, RULE)
    )
    assert resolved.mask == RULE.mask, "a column that was added beside untouched ones is none of them"
