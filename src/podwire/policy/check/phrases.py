"""How findings count and list objects (pure)."""

from collections.abc import Iterable, Sequence

from podwire.model.meta import key_of
from podwire.model.pod import Pod

_SOME = 3


def count(number: int, noun: str) -> str:
    """``1 pod``, ``2 pods``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def some(names: Iterable[str]) -> str:
    """The first few of several names, and how many more there are."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _SOME} more" if len(unique) > _SOME else ""
    return ", ".join(unique[:_SOME]) + more


def some_pods(pods: Sequence[Pod]) -> str:
    """The first few of several pods."""
    return some(sorted(key_of(pod.metadata) for pod in pods))


def which(pods: Sequence[Pod]) -> str:
    """``pod shop/a has no`` or ``none of 3 pods (shop/a, shop/b and 1 more) has a``: the start of a sentence."""
    if len(pods) == 1:
        return f"pod {key_of(pods[0].metadata)} has no"
    return f"none of {len(pods)} pods ({some_pods(pods)}) has a"
