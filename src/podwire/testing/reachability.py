"""The result of the connections that a test tried: true, false, or undecided.

``assert pod.reaches("db:5432")`` holds when every connection was made, ``assert not ...`` when none was made. When only
some were made (two pods of a Deployment, endpoints with different policies), both raise :class:`Undecided` with the
outcome of each connection. The text of a failed assertion names the policy, the rule, and the line of the manifest that
the test applied.
"""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

from podwire.local.probe.result import ProbeResult

JUDGED: ContextVar["Reached | None"] = ContextVar("podwire_judged", default=None)
"""The last result that a test asserted; its text is shown when the assertion fails."""


class Undecided(AssertionError):
    """Some connections were made and others were not, so the question has no answer."""


class Reached:
    """The results of the connections from some sources to a target."""

    def __init__(
        self, source: str, target: str, results: Sequence[ProbeResult], explain: Callable[[ProbeResult], str]
    ) -> None:
        self.source, self.target = source, target
        self.results = tuple(results)
        self._explain = explain

    def __bool__(self) -> bool:
        """Whether all connections were made.

        Raises: Undecided when some were made and others were not.
        """
        JUDGED.set(self)
        if self.undecided:
            raise Undecided(f"{self.source} -> {self.target}: some connections were made and others were not\n{self}")
        return self.results[0].reached

    @property
    def undecided(self) -> bool:
        """Whether only some connections were made, or policies allow only some of the endpoints."""
        return len({result.reached for result in self.results}) > 1 or any(r.attempt.either for r in self.results)

    @property
    def denied(self) -> bool:
        """Whether no connection was made, and policies deny every one of them."""
        return not self and all(result.denied for result in self.results)

    def __repr__(self) -> str:
        """One short line, as pytest shows it beside the assertion."""
        first = self.results[0]
        outcome = "reached" if first.reached else f"not reached, {first.error}"
        if self.undecided:
            outcome = "some reached, some not"
        elif first.denied:
            outcome = "not reached, policies deny it"
        return f"<{self.source} -> {self.target}: {outcome}>"

    def __str__(self) -> str:
        """Each connection, and the effect of policies on one made and one failed connection."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        explained: set[bool] = set()
        for result in self.results:
            yield _outcome(result)
            if result.reached not in explained:
                explained.add(result.reached)
                if explanation := self._explain(result):
                    yield explanation


def _outcome(result: ProbeResult) -> str:
    attempt = result.attempt
    target = attempt.target if attempt.target == attempt.address else f"{attempt.target} ({attempt.address})"
    end = f"{attempt.source.name} -> {target} {attempt.port}"
    if result.reached:
        return f"{end}: reached" + (f", {result.answered_by} answered" if result.answered_by else "")
    return f"{end}: not reached, {result.error}"
