"""Grants the right to write: name -> `Lease`, a row of the ledger that a thread renews while a task works.

    free ──hold──► held ──leave the `with`──► free
                    │ ▲
     expires, or ───┘ └── renewed every third of lease_s
     the same holder holds it again: another attempt owns it, and every check of the first raises LeaseLost

The fence is the attempt, not the time: a task that slept past its lease still owns it, unless another attempt took it.
`check` locks the row inside the caller's transaction, so a takeover waits for that transaction. An end later than
`lease_s` from now shows that the ledger's clock was set back: such a lease is shortened, and a live holder renews it.
Whoever waits for a lease says so in `lease_waits`. A task that holds one for as long as it likes, as that which follows
the source does, looks there (`awaited`) and lets it go.

Names are `slot`, `table:<id>`, `range:<id>`; `hold` takes several in name order, all or none; `hold_free` takes those
that are free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, LiteralString
from uuid import uuid4

import psycopg

from tidemark.errors import LeaseLost, LeaseTaken, TidemarkError
from tidemark.ledger.connection import Ledger, connect
from tidemark.wait_log import Wait
from tidemark.wording import moment

SLOT = "slot"
LEASE_S: Final = 60.0
# How long a task counts as waiting after each try to get a lease.
WAITING_S: Final = 5.0
# Later than any lease ends that was taken or renewed by the clock of now.
FAR_S: Final = 3600.0


def of_table(table: str) -> str:
    """The name of a table's lease, from the table's id."""
    return f"table:{table}"


def of_range(backfill: str, number: int) -> str:
    """The name of the lease of one range of a backfill, which its reader holds."""
    return f"range:{backfill}:{number}"


class Lease:
    """Held leases of one attempt; made by `hold` or `hold_free`. `attempt` (uuid text) also names what the attempt
    writes; `left` are the names that it did not get, each with who holds it."""

    def __init__(self, pipeline: str, names: Iterable[str], holder: str) -> None:
        self.pipeline = pipeline
        self.names = tuple(sorted(set(names)))
        self.holder = holder
        self.attempt = str(uuid4())
        self.left: Mapping[str, LeaseTaken] = {}
        self._lost = threading.Event()

    @property
    def lost(self) -> bool:
        """Whether the renewing thread saw that another attempt took it; a cheap look
        for long loops, never the fence."""
        return self._lost.is_set()

    def mark_lost(self) -> None:
        self._lost.set()

    def check(self, ledger: Ledger, *names: str) -> None:
        """Raise `LeaseLost` unless this attempt still owns `names` (default: all of its leases).

        Call it inside the transaction that writes: the rows stay locked until that transaction ends.
        """
        to_check = sorted(names or self.names)
        rows = ledger.execute(
            "SELECT name, holder, attempt::text FROM tidemark.leases WHERE pipeline = %s AND name = ANY(%s) "
            "ORDER BY name FOR UPDATE",
            (self.pipeline, to_check),
        ).fetchall()
        owners = {name: (holder, attempt) for name, holder, attempt in rows}
        for name in to_check:
            holder, attempt = owners.get(name, ("nobody: it ended", ""))
            if attempt != self.attempt or name not in self.names:
                self.mark_lost()
                raise LeaseLost(lease=name, pipeline=self.pipeline, holder=holder)


@contextmanager
def hold(
    conninfo: str, pipeline: str, name: str | Iterable[str], holder: str, lease_s: float = LEASE_S, wait_s: float = 0.0
) -> Iterator[Lease]:
    """Take the lease, renew it while the block runs, give it back at its end.

    `name` may be several names, which are taken all or none. `holder` names a task instance: another try of it takes
    its lease over at once. Raises `LeaseTaken` if another holder's lease has not expired within `wait_s`.
    """
    lease = Lease(pipeline, [name] if isinstance(name, str) else name, holder)
    with _held(conninfo, lease, lease_s, wait_s, _try_to_take):
        yield lease


@contextmanager
def hold_free(
    conninfo: str, pipeline: str, names: Collection[str], holder: str, wait_s: float = 0.0
) -> Iterator[Lease]:
    """Like `hold`, with those of the names that are free; `names` of the lease are what it got.

    Raises `LeaseTaken` if none of them is free within `wait_s`: it waits for the first alone.
    """
    lease = Lease(pipeline, names, holder)
    with _held(conninfo, lease, LEASE_S, wait_s, _try_to_take_free):
        yield lease


@contextmanager
def _held(
    conninfo: str,
    lease: Lease,
    lease_s: float,
    wait_s: float,
    try_to_take: Callable[[Ledger, Lease, float], LeaseTaken | None],
) -> Iterator[None]:
    """Take the lease, renew it while the block runs, give it back at its end."""
    session = _Session(conninfo)
    try:
        ledger = Ledger(session.opened(), lease.pipeline)
        _end_what_a_faster_clock_left(ledger, lease_s)
        _wait_for(ledger, lease, wait_s, partial(try_to_take, ledger, lease, lease_s))
        stop = threading.Event()
        renewer = threading.Thread(
            target=_renew, args=(session, lease, lease_s, stop), name=f"lease of {lease.holder}", daemon=True
        )
        renewer.start()
        try:
            yield
        finally:
            stop.set()
            renewer.join()
            _give_back(session, lease)
    finally:
        session.close()


class _Session:
    """A session of the ledger, used by one thread at a time. After an error the next statement has a new one."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: psycopg.Connection[Any] | None = None

    def opened(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = connect(self._conninfo)
        return self._connection

    def rows_changed(self, statement: LiteralString, values: Sequence[Any]) -> int:
        """Execute the statement. Returns the number of rows that it changed."""
        try:
            return self.opened().execute(statement, values).rowcount
        except psycopg.Error:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _give_back(session: _Session, lease: Lease) -> None:
    """Delete the lease. Tried again in a new session, since the next task waits for it to expire where the connection
    broke just now."""
    for _ in range(3):
        # Where the ledger is away the lease expires by itself; that must not hide how the block ended.
        with suppress(psycopg.Error, TidemarkError):
            session.rows_changed(
                "DELETE FROM tidemark.leases WHERE pipeline = %s AND name = ANY(%s) AND attempt = %s::uuid",
                (lease.pipeline, list(lease.names), lease.attempt),
            )
            return


def give_back_of_dead_try(ledger: Ledger, name: str, holder: str) -> None:
    """End the lease that an earlier try of this task instance left when it was killed, where this try has no need of
    it: the run's next task would wait for it to expire."""
    ledger.execute(
        "DELETE FROM tidemark.leases WHERE pipeline = %s AND name = %s AND holder = %s", (ledger.pipeline, name, holder)
    )


def holders(ledger: Ledger) -> dict[str, str]:
    """Who holds each lease of the pipeline that has not ended, by its name."""
    rows = ledger.execute(
        "SELECT name, holder FROM tidemark.leases WHERE pipeline = %s AND expires_at >= clock_timestamp()",
        (ledger.pipeline,),
    )
    return dict(rows.fetchall())


def ended(ledger: Ledger, attempt: str) -> bool:
    """Whether no unexpired lease belongs to this attempt: a condition for what it left
    unregistered to be garbage (R4)."""
    return not ledger.holds(
        "SELECT 1 FROM tidemark.leases WHERE pipeline = %s AND attempt::text = %s AND expires_at >= clock_timestamp()",
        (ledger.pipeline, attempt),
    )


def awaited(ledger: Ledger, holder: str) -> dict[str, str]:
    """The leases that somebody else than `holder` waits for now, each with who."""
    rows = ledger.execute(
        "SELECT name, holder FROM tidemark.lease_waits "
        "WHERE pipeline = %s AND holder <> %s AND expires_at >= clock_timestamp() ORDER BY name, holder",
        (ledger.pipeline, holder),
    )
    return dict(rows.fetchall())


def _wait_for(ledger: Ledger, lease: Lease, wait_s: float, try_to_take: Callable[[], LeaseTaken | None]) -> None:
    wait = Wait(wait_s)
    waits = False
    try:
        while (taken := try_to_take()) is not None:
            if wait_s > 0:
                _say_that_it_waits(ledger, lease)
                waits = True
            if not wait.pause(partial(_description, taken)):
                raise taken
    finally:
        if waits:
            with suppress(psycopg.Error):
                ledger.execute(
                    "DELETE FROM tidemark.lease_waits WHERE pipeline = %s AND holder = %s",
                    (lease.pipeline, lease.holder),
                )
    wait.log_end()


def _say_that_it_waits(ledger: Ledger, lease: Lease) -> None:
    ledger.execute(
        "INSERT INTO tidemark.lease_waits (pipeline, name, holder, expires_at) "
        "SELECT %s, name, %s, clock_timestamp() + %s FROM unnest(%s::text[]) AS name "
        "ON CONFLICT (pipeline, name, holder) DO UPDATE SET expires_at = excluded.expires_at",
        (lease.pipeline, lease.holder, timedelta(seconds=WAITING_S), list(lease.names)),
    )


def _description(taken: LeaseTaken) -> str:
    lease, holder, until = (taken.facts[fact] for fact in ("lease", "holder", "until"))
    return f"the lease {lease}, held by {holder} until {until} unless renewed"


def _try_to_take(ledger: Ledger, lease: Lease, lease_s: float) -> LeaseTaken | None:
    """Take all names or none: the error says who holds the first one that is taken."""
    try:
        with ledger.transaction():
            held = _take(ledger, lease, lease_s)
            for name in lease.names:
                if name not in held:
                    raise _taken(ledger, [name])[name]
    except LeaseTaken as taken:
        return taken
    return None


def _try_to_take_free(ledger: Ledger, lease: Lease, lease_s: float) -> LeaseTaken | None:
    """Take what is free, and keep with the lease what it got; if that is nothing, the error names who holds one."""
    with ledger.transaction():
        held = _take(ledger, lease, lease_s)
        left = _taken(ledger, sorted(set(lease.names) - held))
    if not held:
        return left[lease.names[0]]
    lease.names, lease.left = tuple(sorted(held)), left
    return None


def _take(ledger: Ledger, lease: Lease, lease_s: float) -> set[str]:
    """Those of the lease's names that are free, which are its own from now on."""
    rows = ledger.execute(
        """
        INSERT INTO tidemark.leases AS held (pipeline, name, holder, attempt, taken_at, expires_at)
        SELECT %(pipeline)s, wanted.name, %(holder)s, %(attempt)s::uuid, clock_timestamp(),
               clock_timestamp() + %(lease)s
          FROM unnest(%(names)s::text[]) WITH ORDINALITY AS wanted (name, place) ORDER BY place
            ON CONFLICT (pipeline, name) DO UPDATE
           SET holder = excluded.holder, attempt = excluded.attempt,
               taken_at = excluded.taken_at, expires_at = excluded.expires_at
         WHERE held.expires_at < clock_timestamp() OR held.holder = excluded.holder
        RETURNING name
        """,
        {
            "pipeline": lease.pipeline,
            "names": list(lease.names),
            "holder": lease.holder,
            "attempt": lease.attempt,
            "lease": timedelta(seconds=lease_s),
        },
    ).fetchall()
    return {name for (name,) in rows}


def _end_what_a_faster_clock_left(ledger: Ledger, lease_s: float) -> None:
    """Those of all names: a reader passes over a range whose lease has not ended without asking for it."""
    ledger.execute(
        """
        UPDATE tidemark.leases l SET expires_at = clock_timestamp() + %(lease)s
          FROM (SELECT name FROM tidemark.leases
                 WHERE pipeline = %(pipeline)s AND expires_at > clock_timestamp() + %(far)s
                 ORDER BY name FOR UPDATE) far
         WHERE l.pipeline = %(pipeline)s AND l.name = far.name
        """,
        {"lease": timedelta(seconds=lease_s), "far": timedelta(seconds=FAR_S)},
    )


def _taken(ledger: Ledger, names: Collection[str]) -> dict[str, LeaseTaken]:
    """By name, who holds it and until when."""
    rows = ledger.execute(
        "SELECT name, holder, expires_at FROM tidemark.leases WHERE pipeline = %s AND name = ANY(%s)",
        (ledger.pipeline, list(names)),
    ).fetchall()
    holders = {name: (holder, moment(until)) for name, holder, until in rows}
    taken = {}
    for name in names:
        holder, until = holders.get(name, ("a task that ended just now", "now"))
        taken[name] = LeaseTaken(lease=name, pipeline=ledger.pipeline, holder=holder, until=until)
    return taken


def _renew(session: _Session, lease: Lease, lease_s: float, stop: threading.Event) -> None:
    """Push the expiry ahead until told to stop. An unreachable ledger is tried again:
    the lease may outlive the outage."""
    while not stop.wait(lease_s / 3):
        with suppress(psycopg.Error, TidemarkError):
            renewed = session.rows_changed(
                "UPDATE tidemark.leases SET expires_at = clock_timestamp() + %s "
                "WHERE pipeline = %s AND name = ANY(%s) AND attempt = %s::uuid",
                (timedelta(seconds=lease_s), lease.pipeline, list(lease.names), lease.attempt),
            )
            if renewed < len(lease.names):
                lease.mark_lost()
                break
