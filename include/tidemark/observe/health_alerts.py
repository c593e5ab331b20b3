"""Sends one alert for each new red finding of a pipeline, and one more when it clears.

The ledger records what was sent, in the transaction around the sending (`ledger.observations.sent_alerts`). If a
notifier fails, the next run sends the message. A cleared task sends nothing again. A process that dies between sending
and commit sends twice. A finding that cannot be judged now, like the slot of an unreachable source, is neither new nor
cleared. Five hundred tables that became red for one reason are one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from tidemark.findings import listed
from tidemark.ledger.connection import Ledger
from tidemark.ledger.observations import sent_alerts
from tidemark.ledger.observations.sent_alerts import SentAlert
from tidemark.observe.health import Concern, Health, of_many
from tidemark.wording import counted, moment

NAMES = 20


def announce(ledger: Ledger, health: Health, *, tell: Callable[[str], None]) -> list[str]:
    """Call `tell` with one message for all tables that became red for one reason since the last call, and with one
    for what cleared. Returns the messages. Raises what `tell` raises; unsent messages are sent the next time."""
    messages: list[str] = []

    def say(message: str) -> None:
        tell(message)
        messages.append(message)

    red = sorted(health.of("red"), key=lambda one: (one.alert[0], one.group, one.table))
    for (kind, _), alike in groupby(red, key=lambda one: (one.alert[0], one.group)):
        concerns = {one.alert[1]: one for one in alike}
        with ledger.transaction():
            new = sent_alerts.begin(ledger, kind, {subject: one.line for subject, one in concerns.items()})
            if new:
                say(_new(health.pipeline, [concerns[subject] for subject in new]))
    for kind, ended in groupby(_over(sent_alerts.all_of(ledger), health), key=lambda told: told.kind):
        with ledger.transaction():
            if gone := sent_alerts.end(ledger, kind, [told.subject for told in ended]):
                say(_ended(health.pipeline, gone))
    return messages


def _over(notices: Iterable[SentAlert], health: Health) -> list[SentAlert]:
    """The alerts that have cleared. An alert that only became milder, as for a table that is being backfilled, has
    not."""
    still = {one.alert for one in (*health.of("red"), *health.of("warning"))}
    over = [one for one in notices if (one.kind, one.subject) not in still and one.kind not in health.not_judged]
    return sorted(over, key=lambda one: (one.kind, one.subject))


def _new(pipeline: str, concerns: Sequence[Concern]) -> str:
    first = concerns[0]
    if len(concerns) == 1:
        lines = [f"Pipeline {pipeline}: {first.line}"]
    else:
        names = listed((one.table for one in concerns), limit=NAMES)
        tables = counted(len(concerns), "table")
        lines = [f"Pipeline {pipeline}: {tables} {of_many(first.kind, len(concerns))}: {names}"]
        lines += [f"Of {first.table}:"]
    return "\n".join([*lines, first.message, *first.ways])


def _ended(pipeline: str, notices: Sequence[SentAlert]) -> str:
    first = notices[0]
    line = f"Pipeline {pipeline}: over, told {moment(first.told_at)}: {first.line}"
    return line if len(notices) == 1 else f"{line}\nand {len(notices) - 1} more of the same kind"
