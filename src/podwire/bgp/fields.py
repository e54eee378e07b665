"""Reads fields that several kinds of BGP configuration have; an error names the object and the field (pure)."""

import re

from podwire.errors import ConfigError

AS_MAX = (1 << 32) - 1
_PASSWORD_MAX = 80
"""TCP_MD5SIG_MAXKEYLEN of linux/tcp.h."""
_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_STEP = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")


def community(text: str) -> tuple[int, ...]:
    """The numbers of a community, two or three.

    Raises: ValueError with the reason.
    """
    numbers = tuple(int(number) if number.isdecimal() else -1 for number in text.split(":"))
    limit = 0xFFFF if len(numbers) == 2 else AS_MAX
    if len(numbers) not in (2, 3) or not all(0 <= number <= limit for number in numbers):
        raise ValueError(
            f"{text!r}: expected two numbers up to 65535 (64512:100), or three up to {AS_MAX} (64512:1:100)"
        )
    return numbers


def parse_seconds(source: str, path: str, text: str) -> float:
    """Seconds of a duration in the form of Go, such as ``1m30s``.

    Raises: ConfigError.
    """
    steps = list(_STEP.finditer(text))
    if not steps or "".join(step[0] for step in steps) != text:
        raise ConfigError(source, path, f"{text!r}: expected a duration such as 120s or 2m0s")
    return sum(float(step[1]) * _UNIT_S[step[2]] for step in steps)


def check_password(source: str, path: str, password: str) -> None:
    """Checks that BIRD and the kernel take a password.

    Raises: ConfigError, without the password.
    """
    if len(password.encode()) > _PASSWORD_MAX:
        raise ConfigError(source, path, f"{len(password.encode())} bytes: expected {_PASSWORD_MAX} at most")
    if '"' in password or not password.isprintable():
        raise ConfigError(source, path, "expected printable characters without double quotes")
