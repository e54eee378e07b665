"""How a change of chains and sets is cut into steps, so that no packet meets half of it (pure).

ipset changes one element after the other, iptables-restore a table at once, and neither knows of the other. So: 1. sets
that are new, with their elements; 2. chains that are new and the branches that lead there, while nothing gives their
numbers yet; 3. elements of sets that packets meet: each is written over or comes by itself, and after that others go;
4. branches and chains that no element leads to any more; 5. their sets. A packet that is judged meanwhile finds what it
was led to.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from podwire.policy.dataplanes.iptables.names import TABLE
from podwire.state.chain_marks import POLICY
from podwire.state.ipset import IpSet
from podwire.state.ipset_diff import Add, Create, Delete, Destroy, Operation, diff
from podwire.state.iptables import Rules, Ruleset
from podwire.state.iptables_diff import Saved, repair

Jumps = tuple[tuple[str, str], ...]


class FamilyRules(msgspec.Struct, frozen=True):
    """Some chains and sets, or all of them."""

    chains: Mapping[str, Rules] = {}
    sets: Mapping[str, IpSet] = {}
    jumps: Jumps = ()


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """A change, to be done in this order; false when there is nothing to do."""

    prepare: tuple[Operation, ...] = ()
    enter: str = ""
    lead: tuple[Operation, ...] = ()
    leave: str = ""
    forget: tuple[str, ...] = ()
    """Sets to take away."""

    def __bool__(self) -> bool:
        return bool(self.prepare or self.enter or self.lead or self.leave or self.forget)

    def __str__(self) -> str:
        gone = (f"destroy {name}" for name in self.forget)
        parts = (*map(str, self.prepare), self.enter, *map(str, self.lead), self.leave, *gone)
        return "\n".join(part.rstrip() for part in parts if part)


def steps(saved: Saved, have: Mapping[str, IpSet], want: FamilyRules, meanwhile: Mapping[str, Rules]) -> Steps:
    """What makes of what is there what is wanted.

    ``saved`` are the tables of which ``want`` says what our chains should be, ``meanwhile`` the branches that lead to
    what was and to what will be.
    """
    new = {name: each for name, each in want.sets.items() if name not in have}
    prepare = [operation for each in new.values() for operation in (Create(each), *_added(each))]
    chains = saved.get(TABLE, {})
    ours = {name: tuple(rules) for name, rules in chains.items() if POLICY.owns(TABLE, name)}
    during = {**ours, **want.chains, **meanwhile}
    enter = _text(saved, during, want.jumps)
    then: Saved = {TABLE: {**chains, **during, **_jumped(chains, want.jumps)}}
    return Steps(
        prepare=tuple(prepare),
        enter=enter,
        lead=tuple(_led(have, want.sets)),
        leave=_text(then, want.chains, want.jumps),
        forget=tuple(name for name in have if name not in want.sets),
    )


def _added(declared: IpSet) -> Iterator[Operation]:
    return (Add(declared, key) for key in declared.elements)


def _led(have: Mapping[str, IpSet], want: Mapping[str, IpSet]) -> Iterator[Operation]:
    """The changes of elements: what comes, in all sets, before what goes."""
    operations = [operation for name, each in want.items() if name in have for operation in diff(have[name], each)]
    yield from (each for each in operations if not isinstance(each, Delete))
    yield from (each for each in operations if isinstance(each, Delete))


def _text(saved: Saved, chains: Mapping[str, Rules], jumps: Jumps) -> str:
    return repair(saved, [Ruleset(family="", table=TABLE, chains=chains, jumps=jumps)], POLICY)


def _jumped(chains: Mapping[str, Iterable[str]], jumps: Jumps) -> dict[str, list[str]]:
    """The kernel's own chains once the jumps stand first in them."""
    found: dict[str, list[str]] = {}
    for chain, rule in reversed(jumps):
        before = found.get(chain) or [each for each in chains.get(chain, ()) if each not in dict(jumps).values()]
        found[chain] = [rule, *before]
    return found


def removal(names: Iterable[str]) -> Iterator[Operation]:
    """What takes sets away."""
    return (Destroy(name) for name in names)
