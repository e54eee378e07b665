"""Which objects of the API are in force on a node: the page ``/seen`` of its agent, written and read (pure).

Each part of an agent (routing, proxy, policy) lists the resourceVersion of every object that it follows, one object a
line, as soon as the kernel holds everything that follows from these versions. Until then the part is ``busy``. So a
client that changed an object through the API can tell when the change has taken effect on the node: when the page
lists the version that the API has::

    policy in force
    policy pods shop/web-0 1234
    proxy busy

Cost: nothing until the page is requested.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

Versions = Mapping[str, Mapping[str, str]]
"""resourceVersion by the plural of the resource and the key of the object."""

BUSY = "busy"
IN_FORCE = "in force"


class InForcePage:
    """The page of one agent; ``parts`` gives, by part, the versions in force, or None while the part is busy."""

    def __init__(self) -> None:
        self.parts: dict[str, Callable[[], Versions | None]] = {}

    def page(self, _query: Mapping[str, list[str]]) -> Iterator[str]:
        """The lines, all of the moment of the request."""
        return iter(render({part: versions() for part, versions in self.parts.items()}))


def render(parts: Mapping[str, Versions | None]) -> tuple[str, ...]:
    """The lines of a page; None marks a busy part."""
    return tuple(line for part, versions in parts.items() for line in _lines(part, versions))


def _lines(part: str, versions: Versions | None) -> Iterator[str]:
    yield f"{part} {BUSY if versions is None else IN_FORCE}"
    for plural, objects in (versions or {}).items():
        for key, version in objects.items():
            yield f"{part} {plural} {key} {version}"


def parse(lines: Iterable[str]) -> dict[str, Versions | None]:
    """The versions in force by part; None for a busy part."""
    versions_by_part: dict[str, dict[str, dict[str, str]]] = {}
    busy: list[str] = []
    for line in lines:
        part, _, rest = line.strip().partition(" ")
        fields = rest.split()
        if not part:
            continue
        objects = versions_by_part.setdefault(part, {})
        if len(fields) == 3:
            objects.setdefault(fields[0], {})[fields[1]] = fields[2]
        elif rest != IN_FORCE:
            busy.append(part)
    return {part: None if part in busy else versions for part, versions in versions_by_part.items()}


def lag(lines: Iterable[str], part: str, expected: Versions) -> str:
    """The objects that a part does not have in force yet: older versions, or deleted ones; empty when there are none.

    A newer version than wanted counts as in force, since resourceVersions of one API server increase.
    """
    parts = parse(lines)
    if part not in parts:
        return f"its agent has no part {part}"
    have = parts[part]
    if have is None:
        return "it is being programmed"
    for plural, objects in expected.items():
        versions = have.get(plural, {})
        for key, version in objects.items():
            if key not in versions or int(versions[key]) < int(version):
                return f"{plural} {key} is not known at version {version}"
        if missing := versions.keys() - objects.keys():
            return f"{plural} {min(missing)} is not gone"
    return ""


def difference(lines: Iterable[str], expected: Versions) -> str:
    """The objects that a part does not have in force at exactly the wanted version; empty when there are none."""
    parts = parse(lines)
    have: dict[str, dict[str, str]] = {}
    for part, versions in parts.items():
        if versions is None:
            return f"{part} is being programmed"
        for plural, objects in versions.items():
            have.setdefault(plural, {}).update(objects)
    for plural, objects in expected.items():
        known = have.get(plural, {})
        if known != objects:
            keys = sorted(key for key in {*known, *objects} if known.get(key) != objects.get(key))
            return f"{plural} {', '.join(keys[:3])} not in force yet"
    return ""
