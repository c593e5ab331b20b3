"""The SQL of Perl tests is extracted as Perl would send it, and what only Perl could make up is counted."""

from __future__ import annotations

import pytest

from tests.witnesses.perl_script import Call, calls

SCRIPT = r"""
my $table = 'tab';
my $later = $node_publisher->connstr . ' dbname=postgres';
# $node_publisher->safe_psql('postgres', "SELECT 'in a comment'");
$node_publisher->safe_psql('postgres', "INSERT INTO $table VALUES ('\$1', \"x\");");    # one
$node_publisher->safe_psql(
	'postgres', q{SELECT f(1) || '}' || 'it\'s'} . " FROM ${table}");
$node_subscriber->safe_psql('postgres', "SELECT 'of another node'");
my ($cmdret, $stdout, $stderr) = $node_publisher->psql('postgres', qq[
	SELECT a[1], '\xc3' FROM t]);
$h->query_safe(qq{BEGIN; INSERT INTO t VALUES ('{1}');});
$node_publisher->wait_for_catchup('tap_sub');
$node_publisher->safe_psql('postgres', "SELECT '$later'");
$node_publisher->safe_psql('postgres', made_up($table));
$node_publisher->safe_psql('other', "SELECT 1");
$table = name_of($table);
$node_publisher->safe_psql('postgres', "SELECT FROM $table");
"""


def test_calls_to_the_publisher_stand_in_order_with_their_text() -> None:
    assert [*calls(SCRIPT)] == [
        Call("sql", "INSERT INTO tab VALUES ('$1', \"x\");"),
        Call("unread"),
        Call("sql", "\n\tSELECT a[1], '\xc3' FROM t"),
        Call("session", "BEGIN; INSERT INTO t VALUES ('{1}');"),
        Call("catch_up"),
        Call("unread"),
        Call("unread"),
        Call("unread"),
        Call("unread"),
    ]


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("'a\\n\\\\b'", "a\\n\\b"),
        ('"a\\n\\tb"', "a\n\tb"),
        ("q(a (b) c)", "a (b) c"),
        ("qq{a {b} \\} c}", "a {b} } c"),
        ("'a' . \"b\"", "ab"),
    ],
)
def test_a_literal_is_what_perl_makes_of_it(literal: str, text: str) -> None:
    assert [*calls(f"$node_publisher->safe_psql('postgres', {literal});")] == [Call("sql", text)]
