"""The desired state of this node's kernel, as the page ``/state`` on the agent's socket.

Each part returns its shares when the page is requested. Shares do not change while they are sent, so the parts continue
meanwhile. The reader compares them with the kernel (``podwire state --diff``), not the agent: the difference matters
most while an agent hangs.
"""

from collections.abc import Callable, Iterable, Iterator

from podwire.http.pages import Query
from podwire.state import share
from podwire.state.share import Share


class StatePage:
    """The shares of all parts of an agent, by the name of the part."""

    def __init__(self) -> None:
        self.parts: dict[str, Callable[[], Iterable[Share]]] = {}

    def page(self, query: Query) -> Iterator[str]:
        """The document; ``part`` in the query, which may be repeated, selects parts.

        Raises: ValueError when there is no such part.
        """
        names = query.get("part", [])
        if unknown := [name for name in names if name not in self.parts]:
            raise ValueError(f"this agent has no part {', '.join(unknown)}; it runs {', '.join(self.parts)}")
        return share.render(self._shares(names))

    def _shares(self, names: list[str]) -> Iterator[Share]:
        for name, tell in self.parts.items():
            if name in names or not names:
                yield from tell()
