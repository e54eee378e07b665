"""The answer about a URL as lines of text."""

from collections.abc import Iterator

from podwire.why.gateway.explain import UrlAnswer


def render(answer: UrlAnswer) -> Iterator[str]:
    """The outcome at each way in, then how it comes about."""
    if not answer.entrances:
        yield f"{answer.method} {answer.url}: refused: no Ingress and no Gateway has a listener for this port"
    for entrance in answer.entrances:
        yield f"{answer.method} {answer.url}: {entrance.outcome}"
        yield f"  at {entrance.name}" + (f", {', '.join(entrance.addresses)}" if entrance.addresses else "")
        yield from (f"  {step}" for step in entrance.steps)
        for backend in entrance.backends:
            endpoints = ", ".join(backend.endpoints) or backend.problem
            yield f"  backend {backend.key} gets {backend.share:g} %: {endpoints}"
        yield from (f"  {problem}" for problem in entrance.problems)
