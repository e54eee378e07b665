"""Carries a plan out, change by change, and says for which nodes it failed.

Guarantees: 1. the changes are made one after the other in the order of the plan, and a cancelled run ends between two
calls; 2. when the cloud refuses a change, further changes for the same node are left out, and those for other nodes are
made, also those of a node that the plan cannot serve completely; 3. when a table is full, no further route is added to
it in this run; 4. when the cloud cannot be asked, the run ends, and the nodes that are not done have this as their
problem.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from podwire.controllers.cloudroutes.provider import AddRoute
from podwire.errors import CloudError, CloudUnavailable
from podwire.observe.log import Log


class SyncOutcome(msgspec.Struct, frozen=True):
    """What a run achieved: the reasons of nodes without all routes, other failures, and the number of changes."""

    problems: Mapping[str, str] = {}
    failures: tuple[str, ...] = ()
    changes: int = 0
    unavailable: str = ""


class Planned(Protocol):
    """A plan: changes with their nodes, and the nodes that have a problem already."""

    @property
    def changes(self) -> Sequence[tuple[Any, str]]: ...

    @property
    def problems(self) -> Mapping[str, str]: ...


class Changer(Protocol):
    """Makes changes; a provider of the kind for which the plan was made."""

    def apply(self, change: Any) -> None:
        """Raises: CloudUnavailable; CloudError."""
        ...


async def carry_out(provider: Changer, planned: Planned, log: Log) -> SyncOutcome:
    """Makes the changes of a plan."""
    problems: dict[str, str] = {}
    failures: list[str] = []
    full: dict[str, str] = {}
    changes = 0
    for at, (change, node) in enumerate(planned.changes):
        if node and node in problems:
            continue
        if isinstance(change, AddRoute) and not change.replace and change.table in full:
            problems[node] = full[change.table]
            continue
        try:
            await asyncio.to_thread(provider.apply, change)
        except CloudUnavailable as failure:
            waiting = {name: str(failure) for _, name in planned.changes[at:] if name}
            return SyncOutcome({**waiting, **planned.problems, **problems}, tuple(failures), changes, str(failure))
        except CloudError as refusal:
            _note(change, node, refusal, problems, failures)
            if refusal.code == "RouteLimitExceeded" and isinstance(change, AddRoute):
                full[change.table] = str(refusal)
        else:
            changes += 1
            log.info("changed the cloud's network", change=str(change), node=node)
    return SyncOutcome({**planned.problems, **problems}, tuple(failures), changes)


def _note(change: Any, node: str, refusal: CloudError, problems: dict[str, str], failures: list[str]) -> None:
    if node:
        problems[node] = str(refusal)
    else:
        failures.append(f"{change}: {refusal}")
