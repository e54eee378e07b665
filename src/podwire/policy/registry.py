"""How policy data planes are opened by their names in :mod:`podwire.policy.modes`, and cleared.

The module of each has, beside its class, a function ``clear`` that takes away what an earlier run left.
"""

import importlib
from pathlib import Path

from podwire.errors import KernelError, Unsupported
from podwire.kernel.features import Features
from podwire.policy.dataplane import Facts, PolicyDataPlane
from podwire.policy.modes import DATAPLANES, FEATURES


def open_dataplane(name: str, facts: Facts, netns: Path | str | None = None) -> PolicyDataPlane:
    """The data plane of that name in a network namespace (None: that of this thread); nothing is written yet.

    Raises: KeyError for a name that is not in the registry; KernelError, Unsupported naming what is missing.
    """
    module, _, attribute = DATAPLANES[name].partition(":")
    if name in FEATURES:
        answer = Features().probe(FEATURES[name])
        if answer.verdict == "no":
            raise Unsupported(answer.name, answer.minimum, answer.reason)
    made: PolicyDataPlane = getattr(importlib.import_module(module), attribute)(facts, netns)
    return made


class Registry:
    """The data planes of one network namespace (None: that of this process)."""

    def __init__(self, netns: Path | str | None = None) -> None:
        self._netns = netns

    def names(self) -> tuple[str, ...]:
        """All there are, in the order in which one stands in for another."""
        return tuple(DATAPLANES)

    def open(self, name: str, facts: Facts) -> PolicyDataPlane:
        """One by its name.

        Raises: KeyError for a name that is not in the registry; KernelError.
        """
        return open_dataplane(name, facts, self._netns)

    def clear(self, name: str) -> bool:
        """Takes away what an earlier run left of one; whether there was anything.

        Raises: KeyError for a name that is not in the registry; KernelError.
        """
        found: bool = importlib.import_module(DATAPLANES[name].partition(":")[0]).clear(self._netns)
        return found


def clear_all(netns: Path | str | None = None) -> bool:
    """Takes away what an earlier run left of any; whether there was anything.

    Raises: KernelError of the first that fails; the others are gone.
    """
    registry, found, failures = Registry(netns), False, []
    for name in registry.names():
        try:
            found = registry.clear(name) or found
        except Unsupported:
            continue
        except KernelError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]
    return found
