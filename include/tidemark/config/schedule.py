"""Computes the longest time between two runs of a DAG from its schedule, in seconds, and when the next one is due.

Preflight compares it with the time that the source tolerates (`idle_replication_slot_timeout`). Only the five-field
cron form and Airflow's presets are parsed. Any other schedule gives None; Airflow judges it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidemark.config import PipelineConfig

_DAY_S: Final = 86_400
_PRESETS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_ITEM: Final = re.compile(r"(?:(\*)|(\d+)(?:-(\d+))?)(?:/(\d+))?")
_DAYS_OF_MONTHS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def longest_gap_s(schedule: str | None) -> float | None:
    """The longest time between two runs, None if it cannot be told (no schedule, a form of another kind).

    Worked out over four years in which the first of January falls on different weekdays.
    """
    fields = _PRESETS.get(schedule or "", schedule or "").lower().split()
    if len(fields) != len(_FIELDS):
        return None
    values = [
        _values(field, *limits, number) for number, (field, limits) in enumerate(zip(fields, _FIELDS, strict=True))
    ]
    if not all(values):
        return None
    minutes, hours, days, months, weekdays = (value or set() for value in values)
    weekdays = {day % 7 for day in weekdays}
    times = sorted(hour * 3600 + minute * 60 for hour in hours for minute in minutes)
    # Cron's own rule: where both day fields are restricted, either of them is enough.
    either = not fields[2].startswith("*") and not fields[4].startswith("*")
    runs, day_number = [], 0
    for _ in range(4):
        for month, length in enumerate(_DAYS_OF_MONTHS, start=1):
            for day in range(1, length + 1):
                by_day, by_weekday = day in days, day_number % 7 in weekdays
                if month in months and ((by_day or by_weekday) if either else (by_day and by_weekday)):
                    runs.append(day_number)
                day_number += 1
    within = [later - earlier for earlier, later in pairwise(times)]
    between = [(later - earlier) * _DAY_S + times[0] - times[-1] for earlier, later in pairwise(runs)]
    return float(max(within + between, default=0)) or None


def next_after(schedule: str | None, moment: datetime) -> datetime | None:
    """When the next run is due, of those later than the moment, in UTC as Airflow reads a schedule; None as above, and
    for one that names no day within five years."""
    if longest_gap_s(schedule) is None:
        return None
    fields = _PRESETS.get(schedule or "", schedule or "").lower().split()
    minutes, hours, days, months, weekdays = (
        _values(field, *limits, number) or set()
        for number, (field, limits) in enumerate(zip(fields, _FIELDS, strict=True))
    )
    weekdays = {day % 7 for day in weekdays}
    either = not fields[2].startswith("*") and not fields[4].startswith("*")
    first = moment.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    for number in range(5 * 366):
        day = (first + timedelta(days=number)).replace(hour=0, minute=0) if number else first
        by_day, by_weekday = day.day in days, day.isoweekday() % 7 in weekdays
        if day.month not in months or not ((by_day or by_weekday) if either else (by_day and by_weekday)):
            continue
        of_day = ((hour, minute) for hour in sorted(hours) for minute in sorted(minutes))
        at = next((time for time in of_day if time >= (day.hour, day.minute)), None)
        if at is not None:
            return day.replace(hour=at[0], minute=at[1])
    return None


def longest_unread_s(config: PipelineConfig) -> float | None:
    """How long the source may go unread: between two runs, None if the schedule does not say. A run that follows reads
    all the time, and while nothing happens its heartbeats say so."""
    return longest_gap_s(config.schedule) if config.follow is None else float(config.bounds.heartbeat_s)


def longest_silence_s(config: PipelineConfig) -> float | None:
    """How long nothing may be staged before the capture counts as standing still; None if its schedule does not say.

    An idle pipeline writes a heartbeat every `heartbeat_s`, its runs that they looked, and one may fail."""
    gap_s = longest_unread_s(config)
    return None if gap_s is None else 2 * max(gap_s, config.bounds.heartbeat_s) + config.bounds.run_s


def _values(field: str, low: int, high: int, number: int) -> set[int] | None:
    names = {3: dict(zip(_MONTHS, range(1, 13), strict=True)), 4: dict(zip(_WEEKDAYS, range(7), strict=True))}.get(
        number, {}
    )
    values: set[int] = set()
    for item in field.split(","):
        text = re.sub("[a-z]+", lambda match: str(names.get(match[0], match[0])), item)
        match = _ITEM.fullmatch(text)
        if match is None:
            return None
        star, first, last, step = match.groups()
        start = low if star else int(first)
        end = high if star or (step and not last) else int(last or first)
        if not low <= start <= end <= high or step == "0":
            return None
        values.update(range(start, end + 1, int(step or 1)))
    return values
