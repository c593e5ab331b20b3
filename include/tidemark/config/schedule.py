"""Computes the longest time between two runs of a DAG from its schedule, in seconds, and when the next one is due.

Preflight compares it with the time that the source tolerates (`idle_replication_slot_timeout`). Only the five-field
cron form and Airflow's presets are read, by croniter, as Airflow does. Any other schedule gives None; Airflow judges
it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from croniter import CroniterBadDateError, CroniterError, croniter

if TYPE_CHECKING:
    from tidemark.config import PipelineConfig

_DAY_S: Final = 86_400
_LIMITS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
# Eight years, in which the first of January falls on each weekday and February has both lengths.
_DAYS: Final = [date(2024, 1, 1) + timedelta(days=number) for number in range(8 * 365 + 2)]


def longest_gap_s(schedule: str | None) -> float | None:
    """The longest time between two runs, None if it cannot be told (no schedule, a form of another kind)."""
    fields = _fields(schedule)
    if fields is None:
        return None
    minutes, hours, days, months, weekdays = (
        range(low, high + 1) if "*" in values else [int(value) for value in values]
        for values, (low, high) in zip(fields, _LIMITS, strict=True)
    )
    # Cron's own rule: where both day fields are restricted, either of them is enough.
    either = "*" not in fields[2] and "*" not in fields[4]
    runs = []
    for day in _DAYS:
        by_day, by_weekday = day.day in days, day.isoweekday() % 7 in weekdays
        if day.month in months and ((by_day or by_weekday) if either else (by_day and by_weekday)):
            runs.append(day.toordinal())
    times = sorted(hour * 3600 + minute * 60 for hour in hours for minute in minutes)
    within = [later - earlier for earlier, later in pairwise(times)]
    between = [(later - earlier) * _DAY_S + times[0] - times[-1] for earlier, later in pairwise(runs)]
    return float(max(within + between, default=0)) or None


def next_after(schedule: str | None, moment: datetime) -> datetime | None:
    """When the next run is due, of those later than the moment, in UTC as Airflow reads a schedule; None as above."""
    if longest_gap_s(schedule) is None:
        return None
    try:
        due: datetime = croniter(_cron(schedule), moment.astimezone(UTC)).get_next(datetime)
    except CroniterBadDateError:
        return None
    return due


def longest_unread_s(config: PipelineConfig) -> float | None:
    """How long the source may go unread: between two runs, None if the schedule does not say. A run that follows reads
    all the time, and while nothing happens its heartbeats say so."""
    return longest_gap_s(config.schedule) if config.follow is None else float(config.bounds.heartbeat_s)


def longest_silence_s(config: PipelineConfig) -> float | None:
    """How long nothing may be staged before the capture counts as standing still; None if its schedule does not say.

    An idle pipeline writes a heartbeat every `heartbeat_s`, its runs that they looked, and one may fail."""
    gap_s = longest_unread_s(config)
    return None if gap_s is None else 2 * max(gap_s, config.bounds.heartbeat_s) + config.bounds.run_s


def _cron(schedule: str | None) -> str:
    """Airflow has one preset more than croniter."""
    return "0 0 1 */3 *" if schedule == "@quarterly" else schedule or ""


def _fields(schedule: str | None) -> list[list[Any]] | None:
    """Minutes, hours, days, months and weekdays: all of them, or "*"."""
    try:
        expanded, nth_weekdays = croniter.expand(_cron(schedule))
    except CroniterError:
        return None
    if len(expanded) != len(_LIMITS) or nth_weekdays or "l" in expanded[2]:
        return None
    fields: list[list[Any]] = expanded
    return fields
