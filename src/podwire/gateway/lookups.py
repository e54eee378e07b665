"""What the translation of an object reads of others: questions whose answers are recorded.

A later translation asks the same questions again. While all answers are the same, so is what was translated. The
backend of a Service port is made anew when the Service or one of its EndpointSlices is another object.

Cost of a question about a backend that was asked before: 3 us.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import msgspec

from podwire.gateway.backends import Place, Resolved, UpstreamFacts, resolve
from podwire.model.service import EndpointSlice, Service

P = ParamSpec("P")
T = TypeVar("T")
Transport = Literal["TCP", "UDP"]


class RecordedAnswer(NamedTuple):
    """A question, and what was answered."""

    ask: Callable[..., object]
    arguments: tuple[Any, ...]
    answer: object


class Recorder:
    """Asks questions and keeps the answers."""

    def __init__(self) -> None:
        self.answers: list[RecordedAnswer] = []

    def ask(self, ask: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The answer to a question, which has no named arguments."""
        answer = ask(*arguments, **named)
        self.answers.append(RecordedAnswer(ask, arguments, answer))
        return answer


def still_answered(answers: Iterable[RecordedAnswer]) -> bool:
    """Whether all questions have the answers that were recorded."""
    for entry in answers:
        newest = entry.ask(*entry.arguments)
        if newest is not entry.answer and newest != entry.answer:
            return False
    return True


def identical(first: Sequence[object], second: Sequence[object]) -> bool:
    """Whether two sequences have the very same objects."""
    return first is second or (len(first) == len(second) and all(map(is_, first, second)))


class _KnownBackend(msgspec.Struct, frozen=True):
    """A backend, and what it was made from."""

    service: Service | None
    slices: tuple[EndpointSlice, ...]
    place: Place
    resolved: Resolved


class BackendLookups:
    """Backends of Service ports; what was found before stays known from one translation to the next."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str | int, Transport], _KnownBackend] = {}
        self.upstreams = UpstreamFacts(services={}, slices=lambda _key: ())

    def renew(self, upstreams: UpstreamFacts) -> None:
        """Takes the facts of the next translation."""
        self.upstreams = upstreams
        self._known = {key: entry for key, entry in self._known.items() if f"{key[0]}/{key[1]}" in upstreams.services}

    def resolve(self, namespace: str, name: str, port: str | int, transport: Transport = "TCP") -> Resolved:
        """The backend of a Service port."""
        facts, key = self.upstreams, f"{namespace}/{name}"
        service = facts.services.get(key)
        slices = tuple(facts.slices(key)) if service is not None else ()
        known = self._known.get((namespace, name, port, transport))
        if (
            known is not None
            and known.service is service
            and known.place == facts.place
            and identical(known.slices, slices)
        ):
            return known.resolved
        resolved = resolve(facts, namespace, name, port, transport)
        self._known[namespace, name, port, transport] = _KnownBackend(service, slices, facts.place, resolved)
        return resolved
