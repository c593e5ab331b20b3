"""Lists the kinds of change that mark a table although the event trigger is there.

Without the event trigger a table may be marked, and is repaired by one backfill; it is never parked and never differs
without a mark. With the trigger it is equal and unmarked from the first run on, but for these kinds.
"""

from __future__ import annotations

from typing import Final

# With the trigger too: what no message can tell, since the stream has no values of it. A backfill brings them.
MARKED: Final = frozenset(
    {
        "add_with_volatile",
        "add_serial",
        "add_identity",
        "add_generated",
        "add_of_domain",
        "set_expression",
        "drop_expression",
        "numeric_of_other_scale",
        "same_type_with_using",
        "to_a_domain",
        "from_a_domain",
        "narrower_int",
        "int_to_text",
        "text_to_int",
        "wider_int",
        "wider_key",
        "value_of_enum_renamed",
        "attribute_added",
        "attribute_dropped",
        "key_on_other_columns",
        "key_dropped",
        "key_added",
        "key_made_again",
        "row_lost_beside_the_key",
        "identity_nothing",
        "identity_default",
        "identity_by_index",
        "unlogged",
        "logged",
        "unlogged_for_a_while",
        "dropped_and_created",
        "taken_from_the_publication",
        "taken_from_the_publication_and_back",
        "unlogged_partition_created",
        "partition_unlogged",
        "partition_unlogged_for_a_while",
        "partition_logged",
        "partition_detached",
        "partition_detached_and_attached",
        "table_attached",
        "partition_truncated",
        "partition_dropped",
        "partition_comes_and_goes",
        "partition_of_other_identity_for_a_while",
    }
)

# With the trigger: exact alone. They rewrite the table, and no event trigger fires for them. So the new file number
# cannot be told from that of a rewrite by another change in the same interval.
REWRITES_WITHOUT_EVENT: Final = frozenset({"cluster", "vacuum_full"})
