"""Times and durations in the form that the library accepts as items of maps and lists.

The library knows both by the names of their classes and by ``DESCRIPTOR``, as messages of protocol buffers.
"""

from datetime import UTC, datetime, timedelta

import msgspec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


class Descriptor(msgspec.Struct, frozen=True):
    """Names the message that a value stands for."""

    full_name: str


class Timestamp:
    """A point in time, in seconds since 1970 and nanoseconds."""

    __slots__ = ("nanos", "seconds")
    DESCRIPTOR = Descriptor("google.protobuf.Timestamp")

    def __init__(self, moment: datetime) -> None:
        self.seconds, rest = divmod(moment - _EPOCH, _SECOND)
        self.nanos = rest.microseconds * 1000


class Duration:
    """A length of time."""

    __slots__ = ("nanos", "seconds")
    DESCRIPTOR = Descriptor("google.protobuf.Duration")

    def __init__(self, length: timedelta) -> None:
        self.seconds, rest = divmod(length, _SECOND)
        self.nanos = rest.microseconds * 1000


def wrapped(value: object) -> object:
    """The value of an expression in the form that another expression accepts as a variable."""
    if isinstance(value, datetime):
        return Timestamp(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
    if isinstance(value, timedelta):
        return Duration(value)
    if isinstance(value, list):
        return [wrapped(item) for item in value]
    if isinstance(value, dict):
        return {key: wrapped(item) for key, item in value.items()}
    return value
