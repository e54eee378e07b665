"""Cron schedules: five fields, names, steps, ranges, lists, and words such as ``@hourly``. Pure.

The search for the next time goes day by day and skips days that do not match, so even 29 February costs less than 3,300
steps. When both day of month and day of week are restricted, a day that matches one of them matches. A local time that
does not exist (clocks go forward) is skipped; a local time that exists twice (clocks go back) runs once.
Source: crontab(5), ``github.com/robfig/cron`` as used by Kubernetes.
"""

import datetime

import msgspec

from podwire.errors import ConfigError

_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_DAYS = {name: n for n, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
_HORIZON_DAYS = 366 * 9


class Schedule(msgspec.Struct, frozen=True):
    """The values that each field allows; ``any_day`` and ``any_weekday`` are True when the field begins with ``*``."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def next_after(self, instant: datetime.datetime) -> datetime.datetime | None:
        """The first time after ``instant``, in its time zone; None when no time of the next nine years matches."""
        zone = instant.tzinfo
        at = instant.replace(second=0, microsecond=0, tzinfo=None) + datetime.timedelta(minutes=1)
        day = at.date()
        for _ in range(_HORIZON_DAYS):
            if day.month in self.months and self._day_matches(day):
                start = at.time() if day == at.date() else datetime.time()
                for hour in sorted(self.hours):
                    for minute in sorted(self.minutes):
                        if (hour, minute) >= (start.hour, start.minute):
                            candidate = datetime.datetime.combine(day, datetime.time(hour, minute), zone)
                            if _exists(candidate) and candidate > instant:
                                return candidate
            day += datetime.timedelta(days=1)
        return None

    def _day_matches(self, day: datetime.date) -> bool:
        by_month = day.day in self.days
        by_week = day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_month and by_week
        return by_month or by_week


def parse_schedule(text: str) -> Schedule:
    """The schedule of a CronJob.

    Raises: ConfigError naming the field.
    """
    fields = _NICKNAMES.get(text.strip().lower(), text).split()
    if len(fields) != len(_FIELDS):
        raise ConfigError("schedule", "", f"expected five fields or a word such as @daily, got {text!r}")
    values = [_parse_field(field, *spec) for field, spec in zip(fields, _FIELDS, strict=True)]
    weekdays = frozenset(day % 7 for day in values[4])
    return Schedule(values[0], values[1], values[2], values[3], weekdays, fields[2][0] in "*?", fields[4][0] in "*?")


def _parse_field(text: str, name: str, low: int, high: int, names: dict[str, int]) -> frozenset[int]:
    values: set[int] = set()
    for item in text.lower().split(","):
        span, _, step_text = item.partition("/")
        try:
            step = int(step_text) if step_text else 1
            if span in ("*", "?"):
                first, last = low, high if name != "day of week" else 6
            elif "-" in span:
                first, last = (_value(end, names) for end in span.split("-", 1))
            else:
                first = _value(span, names)
                last = high if step_text else first
        except ValueError as failure:
            raise ConfigError("schedule", name, f"cannot parse {item!r}") from failure
        if not low <= first <= last <= high or step < 1:
            raise ConfigError("schedule", name, f"{item!r} is not within {low}-{high}")
        values.update(range(first, last + 1, step))
    return frozenset(values)


def _value(text: str, names: dict[str, int]) -> int:
    return names[text] if text in names else int(text)


def _exists(instant: datetime.datetime) -> bool:
    back = instant.astimezone(datetime.UTC).astimezone(instant.tzinfo)
    return back.replace(tzinfo=None) == instant.replace(tzinfo=None)
