"""A data plane that writes down what it is asked; what :mod:`tests.unit.proxy.test_registry` puts into the registry."""

import os
from pathlib import Path

from podwire.proxy.servicemap import NodeFacts, ServiceMap
from podwire.state.nft import Table

written: list[str] = []
"""What happened, by all of them."""


class Notebook:
    """One mode."""

    name = "notebook"
    instant = True

    def __init__(self, facts: NodeFacts, netns: Path | str | None = None) -> None:
        self._ends = os.pipe()
        self._note(f"open for {facts.name}")

    def _note(self, subject: str) -> None:
        written.append(f"{self.name}: {subject}")

    def load(self, services: ServiceMap, facts: NodeFacts | None = None) -> tuple[str, ...]:
        self._note(f"load {' '.join(services)}")
        return tuple(services)

    def update(self, services: ServiceMap, changed: ServiceMap) -> tuple[str, ...]:
        self._note(f"update {' '.join(changed)}")
        return tuple(changed)

    def heal(self, services: ServiceMap) -> tuple[str, ...]:
        self._note("heal")
        return ()

    def fileno(self) -> int:
        return self._ends[0]

    def disturbed(self) -> bool:
        return True

    def conflicts(self) -> tuple[str, ...]:
        return (self.name,)

    def desired(self) -> tuple[Table, ...]:
        return (Table(family="ip", name=self.name),)

    def remove(self) -> None:
        self._note("remove")

    def close(self) -> None:
        self._note("close")
        for end in self._ends:
            os.close(end)


class Second(Notebook):
    """Another mode."""

    name = "second"


def clear(netns: Path | str | None = None) -> bool:
    written.append("clear")
    return True
