"""The result of the connections that a test tried: true, false, or undecided.

``assert pod.reaches("db:5432")`` holds when every connection was made, ``assert not ...`` when none was. Where some
were and others were not (two pods of a Deployment, endpoints that policies tell apart), neither holds: asking raises,
with what became of each. What is shown when an assertion fails is in the text: which policy, which rule, and which line
of the manifest that the test applied.
"""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

from podwire.local.probe.result import Result

JUDGED: ContextVar["Reached | None"] = ContextVar("podwire_judged", default=None)
"""What a test asserted last, so that its text can be shown where the assertion fails."""


class Undecided(AssertionError):
    """Some connections were made and others were not, so the question has no answer."""


class Reached:
    """The results of the connections from some sources to a target."""

    def __init__(self, source: str, target: str, results: Sequence[Result], said: Callable[[Result], str]) -> None:
        self.source, self.target = source, target
        self.results = tuple(results)
        self._said = said

    def __bool__(self) -> bool:
        """Whether all of them were made.

        Raises: Undecided when some were made and others were not.
        """
        JUDGED.set(self)
        if self.undecided:
            raise Undecided(f"{self.source} -> {self.target}: some connections were made and others were not\n{self}")
        return self.results[0].reached

    @property
    def undecided(self) -> bool:
        """Whether some were made and others not, or might as well not have been."""
        return len({result.reached for result in self.results}) > 1 or any(r.attempt.either for r in self.results)

    @property
    def denied(self) -> bool:
        """Whether none was made, and each of them because of policies: nothing was refused or away."""
        return not self and all(result.denied for result in self.results)

    def __repr__(self) -> str:
        """One short line, as pytest shows it beside the assertion."""
        first = self.results[0]
        word = "reached" if first.reached else f"not reached, {first.error}"
        if self.undecided:
            word = "some reached, some not"
        elif first.denied:
            word = "not reached, policies deny it"
        return f"<{self.source} -> {self.target}: {word}>"

    def __str__(self) -> str:
        """All of it: each connection, and what policies say of one of those that were made and one that was not."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        told: set[bool] = set()
        for result in self.results:
            yield _outcome(result)
            if result.reached not in told:
                told.add(result.reached)
                if said := self._said(result):
                    yield said


def _outcome(result: Result) -> str:
    attempt = result.attempt
    target = attempt.target if attempt.target == attempt.address else f"{attempt.target} ({attempt.address})"
    end = f"{attempt.source.name} -> {target} {attempt.port}"
    if result.reached:
        return f"{end}: reached" + (f", {result.answered_by} answered" if result.answered_by else "")
    return f"{end}: not reached, {result.error}"
