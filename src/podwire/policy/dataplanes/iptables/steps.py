"""How a change of chains and sets is cut into steps, so that no packet sees half of a change (pure).

ipset changes elements one by one, iptables-restore replaces a table at once, and no transaction covers both. So the
order is: 1. create new sets with their elements; 2. add new chains and the branches to them, while no set element gives
their numbers yet; 3. change the elements of the sets in use: first overwrite and add, then delete; 4. delete the
branches and chains that no element selects any more; 5. delete their sets. A packet that is evaluated during the change
finds every chain that its marks select.
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


class FamilyContents(msgspec.Struct, frozen=True):
    """Chains, sets and jumps of one family: all of them, or those that a change touches."""

    chains: Mapping[str, Rules] = {}
    sets: Mapping[str, IpSet] = {}
    jumps: Jumps = ()


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a change, in order; false when there is nothing to do."""

    prepare: tuple[Operation, ...] = ()
    enter: str = ""
    lead: tuple[Operation, ...] = ()
    leave: str = ""
    forget: tuple[str, ...] = ()
    """Names of the sets to delete."""

    def __bool__(self) -> bool:
        return bool(self.prepare or self.enter or self.lead or self.leave or self.forget)

    def __str__(self) -> str:
        gone = (f"destroy {name}" for name in self.forget)
        lines = (*map(str, self.prepare), self.enter, *map(str, self.lead), self.leave, *gone)
        return "\n".join(line.rstrip() for line in lines if line)


def steps(saved: Saved, have: Mapping[str, IpSet], want: FamilyContents, meanwhile: Mapping[str, Rules]) -> Steps:
    """The steps from the current chains and sets to the desired ones.

    ``saved`` are the current tables, ``have`` the current sets, ``want`` the desired state of podwire's chains and
    sets, ``meanwhile`` the branches during the change, which select both old and new chains.
    """
    new = {name: declared for name, declared in want.sets.items() if name not in have}
    prepare = [operation for declared in new.values() for operation in (Create(declared), *_added(declared))]
    chains = saved.get(TABLE, {})
    ours = {name: tuple(rules) for name, rules in chains.items() if POLICY.owns(TABLE, name)}
    during = {**ours, **want.chains, **meanwhile}
    enter = _text(saved, during, want.jumps)
    then: Saved = {TABLE: {**chains, **during, **_chains_with_jumps(chains, want.jumps)}}
    return Steps(
        prepare=tuple(prepare),
        enter=enter,
        lead=tuple(_element_changes(have, want.sets)),
        leave=_text(then, want.chains, want.jumps),
        forget=tuple(name for name in have if name not in want.sets),
    )


def _added(declared: IpSet) -> Iterator[Operation]:
    return (Add(declared, key) for key in declared.elements)


def _element_changes(have: Mapping[str, IpSet], want: Mapping[str, IpSet]) -> Iterator[Operation]:
    """The changes of elements: additions in all sets come before deletions."""
    operations = [operation for name, ipset in want.items() if name in have for operation in diff(have[name], ipset)]
    yield from (operation for operation in operations if not isinstance(operation, Delete))
    yield from (operation for operation in operations if isinstance(operation, Delete))


def _text(saved: Saved, chains: Mapping[str, Rules], jumps: Jumps) -> str:
    return repair(saved, [Ruleset(family="", table=TABLE, chains=chains, jumps=jumps)], POLICY)


def _chains_with_jumps(chains: Mapping[str, Iterable[str]], jumps: Jumps) -> dict[str, list[str]]:
    """The kernel's built-in chains with the jumps in the first place."""
    built_in: dict[str, list[str]] = {}
    for chain, rule in reversed(jumps):
        before = built_in.get(chain) or [
            existing for existing in chains.get(chain, ()) if existing not in dict(jumps).values()
        ]
        built_in[chain] = [rule, *before]
    return built_in


def removal(names: Iterable[str]) -> Iterator[Operation]:
    """The operations that delete sets."""
    return (Destroy(name) for name in names)
