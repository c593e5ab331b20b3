"""An isolation specification is parsed into sessions, steps and the orders in which they are played."""

from __future__ import annotations

import pytest

from tests.witnesses.isolation_spec import PlayedStep, drawn, parse

SPEC = """\
# two sessions
setup { CREATE TABLE t (id int); }
setup { VACUUM t; }
teardown { DROP TABLE t; }

session s1
setup { BEGIN; }
step "one" { SELECT '#1'; }  # ends soon
step two { COMMIT; }
teardown { RESET ALL; }

session "the second"
step three { SELECT 3; }
"""


def names(order: list[PlayedStep]) -> list[str]:
    return [step.name for step in order]


def test_sessions_have_their_steps_in_order() -> None:
    spec = parse(SPEC)
    assert [part.strip() for part in spec.setup] == ["CREATE TABLE t (id int);", "VACUUM t;"]
    assert [(session.name, list(session.steps)) for session in spec.sessions] == [
        ("s1", ["one", "two"]),
        ("the second", ["three"]),
    ]
    assert spec.sessions[0].steps["one"].strip() == "SELECT '#1';"
    assert spec.session_of("three").name == "the second"


def test_every_order_is_played_that_keeps_each_sessions_own() -> None:
    assert [names(order) for order in parse(SPEC).permutations()] == [
        ["one", "two", "three"],
        ["one", "three", "two"],
        ["three", "one", "two"],
    ]


def test_listed_orders_are_the_only_ones() -> None:
    spec = parse(SPEC + "permutation one(*) three(one notices 2, two) two\npermutation three\n")
    assert list(spec.permutations()) == [
        [PlayedStep("one", is_let_go=True), PlayedStep("three"), PlayedStep("two")],
        [PlayedStep("three")],
    ]


def test_further_orders_are_drawn_of_those_that_were_not() -> None:
    orders = [[PlayedStep(str(number))] for number in range(50)]
    first = drawn(orders, "a seed", 10)
    second = drawn(orders, "a seed", 15, 10)
    rest = drawn(orders, "a seed", 0, 10)
    assert [len(first), len(second), len(rest)] == [10, 15, 40]
    assert sorted(map(names, first + rest)) == sorted(map(names, orders))
    assert all(order in rest for order in second)
    assert drawn(orders, "a seed", 0) == orders
    assert drawn(orders, "a seed", 10) == first != drawn(orders, "another", 10)
    assert drawn(orders, "a seed", 10, 50) == []


def test_what_is_no_specification_is_refused_with_its_line() -> None:
    with pytest.raises(ValueError, match="at line 2"):
        parse("setup { SELECT 1; }\nsession s1 step x { SELECT 1;")
