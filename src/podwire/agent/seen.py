"""Which objects of the API are in force on this node: the page ``/seen`` on the agent's socket.

Each part names the version of every object that it knows, one a line, when the kernel holds all that follows from
them, and says ``busy`` while it does not yet. So who has changed something through the API can tell when it has taken
effect here, whatever it was: when the versions are those of the API::

    policy in force
    policy pods shop/web-0 1234
    proxy busy

Cost: nothing until it is asked.
"""

from collections.abc import Callable, Iterator, Mapping

from podwire.http.pages import Query

Versions = Mapping[str, Mapping[str, str]]
"""By the plural of the resource and the key of the object."""

BUSY = "busy"
IN_FORCE = "in force"


class Seen:
    """What the parts of an agent have taken over; None while a part is at it."""

    def __init__(self) -> None:
        self.parts: dict[str, Callable[[], Versions | None]] = {}

    def page(self, _query: Query) -> Iterator[str]:
        """The lines, all of one moment."""
        return iter(tuple(self._lines()))

    def _lines(self) -> Iterator[str]:
        for part, tell in self.parts.items():
            versions = tell()
            yield f"{part} {BUSY if versions is None else IN_FORCE}"
            for plural, objects in (versions or {}).items():
                for key, version in objects.items():
                    yield f"{part} {plural} {key} {version}"
