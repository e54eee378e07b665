"""The options of ``cache``. Pure.

Of the cluster's own zone nothing is cached by time, so ``disable`` is accepted for it alone.
"""

from typing import Any

from podwire.dns.config import CacheConfig
from podwire.dns.corefile.syntax import Directive
from podwire.dns.corefile.values import expect, plain, seconds, whole

_SUCCESS_S, _DENIAL_S = 3600.0, 1800.0
_STALE_S = 3600.0
_MOST_FAILURE_S = 300.0


def read_cache(directive: Directive) -> tuple[CacheConfig, tuple[str, ...], tuple[tuple[Directive, str], ...]]:
    """The cache of a ``cache`` directive, the zones that it names, and the zones that ``disable`` names.

    Raises: ConfigError with the line for an option that podwire does not have.
    """
    ceiling_s = None
    zones = directive.arguments
    if zones and (zones[0][0].isdigit() or len(zones) == 1) and "." not in zones[0]:
        ceiling_s, zones = float(whole(directive, zones[0])), zones[1:]
    settings: dict[str, Any] = {
        "success_seconds": _SUCCESS_S if ceiling_s is None else ceiling_s,
        "denial_seconds": _DENIAL_S if ceiling_s is None else ceiling_s,
    }
    disabled: list[tuple[Directive, str]] = []
    for option in directive.block:
        if option.name == "disable":
            kinds = (("success",), ("denial",))
            expect(option.arguments[:1] in kinds, option, "expected success or denial, and the cluster's zone")
            disabled += [(option, plain(zone)) for zone in option.arguments[1:]]
            continue
        settings |= _option(option)
    return CacheConfig(**settings), tuple(plain(zone) for zone in zones), tuple(disabled)


def _option(option: Directive) -> dict[str, Any]:
    match option.name, option.arguments:
        case ("success" | "denial") as kind, (capacity, *times) if len(times) < 3:
            settings: dict[str, Any] = {f"{kind}_capacity": whole(option, capacity)}
            for name, text in zip((f"{kind}_seconds", f"{kind}_least_seconds"), times, strict=False):
                settings[name] = float(whole(option, text))
            return settings
        case "prefetch", (amount, *rest) if len(rest) < 3:
            return _prefetch(option, amount, rest)
        case "servfail", (time,):
            failure_s = seconds(option, time)
            expect(failure_s <= _MOST_FAILURE_S, option, f"expected at most 5m, got {time}")
            return {"failure_seconds": failure_s}
        case "serve_stale", arguments:
            return _stale(option, arguments)
    has = "success, denial, prefetch, serve_stale, servfail and disable"
    raise option.wrong(f"podwire does not have this option of cache, or not with these arguments; it has {has}")


def _prefetch(option: Directive, amount: str, rest: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {"prefetch_amount": whole(option, amount)}
    if rest:
        settings["prefetch_seconds"] = seconds(option, rest[0])
    if len(rest) > 1:
        expect(rest[1].endswith("%"), option, f"expected a percentage such as 10%, got {rest[1]!r}")
        percent = whole(option, rest[1].removesuffix("%"))
        expect(10 <= percent <= 90, option, f"expected 10% to 90%, got {rest[1]}")
        settings["prefetch_percent"] = percent
    return settings


def _stale(option: Directive, arguments: tuple[str, ...]) -> dict[str, Any]:
    modes = [text for text in arguments if text in ("immediate", "verify")]
    times = [seconds(option, text) for text in arguments if text not in modes]
    expect(len(modes) < 2 and len(times) < 2, option, "expected a time, and immediate or verify")
    return {"serve_stale_seconds": times[0] if times else _STALE_S, "serve_stale_verify": modes == ["verify"]}
