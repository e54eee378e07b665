"""How findings count and list objects (pure)."""

from collections.abc import Iterable, Sequence

from podwire.model.meta import key_of
from podwire.model.pod import Pod

_SHOWN = 3


def first_names(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _SHOWN} more" if len(unique) > _SHOWN else ""
    return ", ".join(unique[:_SHOWN]) + more


def first_pods(pods: Sequence[Pod]) -> str:
    """The names of the first pods, and how many more there are."""
    return first_names(sorted(key_of(pod.metadata) for pod in pods))


def none_has(pods: Sequence[Pod]) -> str:
    """``pod shop/a has no`` or ``none of 3 pods (shop/a, shop/b and 1 more) has a``: the start of a sentence."""
    if len(pods) == 1:
        return f"pod {key_of(pods[0].metadata)} has no"
    return f"none of {len(pods)} pods ({first_pods(pods)}) has a"
