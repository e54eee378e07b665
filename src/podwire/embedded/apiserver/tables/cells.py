"""The text of single values in a table: durations, selectors, ports, shortened lists.

The text is exactly kubectl's, including spaces, because scripts parse it. Durations follow apimachinery's
``HumanDuration``: two units while small, one when large.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

Json = dict[str, Any]

NONE = "<none>"
UNKNOWN = "<unknown>"
UNSET = "<unset>"
_YEAR_H = 24 * 365


class Column(NamedTuple):
    """One column; ``priority`` 1 is shown by ``-o wide`` alone."""

    name: str
    type: str = "string"
    priority: int = 0
    format: str = ""


class Printer(NamedTuple):
    """The columns of a kind, and the function that gives one object's cells in their order."""

    columns: tuple[Column, ...]
    cells: Callable[[Json, datetime], list[Any]]


NAME = Column("Name", format="name")
AGE = Column("Age")


def wide(*names: str) -> tuple[Column, ...]:
    """Text columns shown by ``-o wide`` alone."""
    return tuple(Column(name, priority=1) for name in names)


def plain(*names: str) -> tuple[Column, ...]:
    """The name column, then text columns of these names."""
    return (NAME, *(Column(name) for name in names))


def at(value: Any, path: str, default: Any = None) -> Any:
    """The value at a dotted path; ``default`` where it is missing or null."""
    for field in path.split("."):
        if not isinstance(value, dict):
            return default
        value = value.get(field)
    return default if value is None else value


def count(obj: Json, path: str) -> int:
    """The number at a dotted path, 0 where it is missing."""
    value = at(obj, path, 0)
    return value if isinstance(value, int) else 0


def parse_time(text: str | None) -> datetime | None:
    """The moment that an API time names, None for none or for text that is no time."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def human_duration(seconds: float) -> str:
    """``75s``, ``3m5s``, ``25m``, ``3h7m``, ``2d3h``, ``9d``, ``2y40d``."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    minutes, hours = total // 60, total // 3600
    steps: tuple[tuple[bool, str], ...] = (
        (total < 0, "0s"),
        (total < 120, f"{total}s"),
        (minutes < 10, _two(minutes, "m", total % 60, "s")),
        (minutes < 180, f"{minutes}m"),
        (hours < 8, _two(hours, "h", minutes % 60, "m")),
        (hours < 48, f"{hours}h"),
        (hours < 24 * 8, _two(hours // 24, "d", hours % 24, "h")),
        (hours < 2 * _YEAR_H, f"{hours // 24}d"),
        (hours < 8 * _YEAR_H, _two(hours // _YEAR_H, "y", hours // 24 % 365, "d")),
    )
    return next((text for fits, text in steps if fits), f"{hours // _YEAR_H}y")


def _two(large: int, unit: str, small: int, subunit: str) -> str:
    return f"{large}{unit}{small}{subunit}" if small else f"{large}{unit}"


def since(text: str | None, now: datetime) -> str:
    """How long ago an API time was."""
    moment = parse_time(text)
    return human_duration((now - moment).total_seconds()) if moment else UNKNOWN


def age(obj: Json, now: datetime) -> str:
    """How long the object has existed."""
    return since(at(obj, "metadata.creationTimestamp"), now)


def name(obj: Json) -> str:
    """The object's name."""
    return str(at(obj, "metadata.name", ""))


def labels(mapping: Mapping[str, str] | None) -> str:
    """``a=b,c=d`` in order of the keys."""
    return ",".join(f"{key}={value}" for key, value in sorted((mapping or {}).items())) or NONE


_OPERATORS: Mapping[str, Callable[[str, str], str]] = {
    "In": lambda key, values: f"{key} in ({values})",
    "NotIn": lambda key, values: f"{key} notin ({values})",
    "Exists": lambda key, _: key,
    "DoesNotExist": lambda key, _: f"!{key}",
}


def selector(label_selector: Json | None) -> str:
    """A label selector: ``app=web,tier in (a,b),!old``."""
    terms = [(key, f"{key}={value}") for key, value in at(label_selector, "matchLabels", {}).items()]
    for rule in at(label_selector, "matchExpressions", []):
        key, values = rule.get("key", ""), ",".join(sorted(rule.get("values") or ()))
        show = _OPERATORS.get(rule.get("operator", ""))
        terms.append((key, show(key, values) if show else "<invalid>"))
    return ",".join(text for _, text in sorted(terms)) or NONE


def containers(obj: Json, path: str = "spec.template.spec") -> list[str]:
    """Two cells: the names and the images of a template's containers."""
    items: list[Json] = at(obj, f"{path}.containers", [])
    return [
        ",".join(str(item.get("name", "")) for item in items),
        ",".join(str(item.get("image", "")) for item in items),
    ]


def shortened(values: Iterable[str], limit: int = 3, empty: str = NONE) -> str:
    """The first few of a list and how many more there are."""
    items = list(values)
    text = ",".join(items[:limit])
    return f"{text} + {len(items) - limit} more..." if len(items) > limit else text or empty


def flag(value: bool | None) -> str:
    """``True``, ``False`` or ``<unset>``."""
    return UNSET if value is None else str(value)


def condition(obj: Json, kind: str) -> Json:
    """The status condition of that type, empty where there is none."""
    conditions: Sequence[Json] = at(obj, "status.conditions", [])
    return next((item for item in conditions if item.get("type") == kind), {})


def is_true(obj: Json, kind: str) -> bool:
    """Whether the condition of that type is True."""
    return bool(condition(obj, kind).get("status") == "True")
