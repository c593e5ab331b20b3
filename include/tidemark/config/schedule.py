"""Computes the longest time between two runs of a DAG from its schedule, in seconds, and the time of the next run.

Preflight compares it with the time that the source tolerates (`idle_replication_slot_timeout`). croniter parses the
five-field cron form and Airflow's presets, as in Airflow. Any other schedule gives None, and only Airflow checks it.
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
# The days of eight years, in which the first of January falls on each weekday and February has both lengths.
_DAYS: Final = [date(2024, 1, 1) + timedelta(days=number) for number in range(8 * 365 + 2)]


def longest_gap_s(schedule: str | None) -> float | None:
    """The longest time between two runs in seconds, None if it is unknown (no schedule, a schedule of another form)."""
    fields = _fields(schedule)
    if fields is None:
        return None
    minutes, hours, days, months, weekdays = (
        range(low, high + 1) if "*" in values else [int(value) for value in values]
        for values, (low, high) in zip(fields, _LIMITS, strict=True)
    )
    # Cron's own rule: if both day fields are restricted, a day has to fit only one of them.
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
    """The time of the first run after the moment, in UTC, as Airflow interprets a schedule; None if `longest_gap_s`
    is None."""
    if longest_gap_s(schedule) is None:
        return None
    try:
        due: datetime = croniter(_cron(schedule), moment.astimezone(UTC)).get_next(datetime)
    except CroniterBadDateError:
        return None
    return due


def longest_unread_s(config: PipelineConfig) -> float | None:
    """The longest time in seconds in which the source is not read, None if the schedule does not determine it.
    Without `follow` it is the time between two runs. A run that follows reads continuously, and a heartbeat records
    that while nothing changes."""
    return longest_gap_s(config.schedule) if config.follow is None else float(config.bounds.heartbeat_s)


def longest_silence_s(config: PipelineConfig) -> float | None:
    """The time in seconds without anything staged after which the capture counts as stalled; None if its schedule
    does not determine it.

    An idle pipeline writes a heartbeat every `heartbeat_s`, its runs record that they read the source, and one run may
    fail.
    """
    gap_s = longest_unread_s(config)
    return None if gap_s is None else 2 * max(gap_s, config.bounds.heartbeat_s) + config.bounds.run_s


def _cron(schedule: str | None) -> str:
    """The schedule for croniter, which lacks one of Airflow's presets."""
    return "0 0 1 */3 *" if schedule == "@quarterly" else schedule or ""


def _fields(schedule: str | None) -> list[list[Any]] | None:
    """The values of minutes, hours, days, months and weekdays, "*" for all; None for a schedule of another form."""
    try:
        expanded, nth_weekdays = croniter.expand(_cron(schedule))
    except CroniterError:
        return None
    if len(expanded) != len(_LIMITS) or nth_weekdays or "l" in expanded[2]:
        return None
    fields: list[list[Any]] = expanded
    return fields
