"""The answer about a URL as lines of text."""

from collections.abc import Iterator

from podwire.why.gateway.explain import UrlAnswer


def render(answer: UrlAnswer) -> Iterator[str]:
    """The outcome first, then how it comes about."""
    yield f"{answer.method} {answer.url}: {answer.outcome}"
    yield from (f"  {step}" for step in answer.steps)
    for backend in answer.backends:
        endpoints = ", ".join(backend.endpoints) or backend.problem
        yield f"  backend {backend.key} gets {backend.share:g} %: {endpoints}"
    yield from (f"  {problem}" for problem in answer.problems)
