"""Lets pods' packets pass the firewalls of other programs, and reports firewalls that podwire does not change.

Guarantees: 1. a change of a firewall is followed within :data:`CHECK_S`, one that keeps the size of a table of legacy
iptables with more than 4 MiB within :data:`READ_S`; 2. rules are written only where a firewall refuses what it does not
know, and are deleted when no firewall does any longer; 3. nothing is read while nothing has changed. Cost: 0.1 ms a
second, and 20 ms for a change.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from podwire.errors import KernelError
from podwire.kernel.firewall_chains import FilterTables
from podwire.observe.log import Log
from podwire.routing.forwarding import blockers, forward_ruleset
from podwire.routing.inputs import NeededPort, input_blockers
from podwire.routing.nodes import Network
from podwire.runtime.clock import Clock
from podwire.state.firewalls import FirewallChain, ForeignChain
from podwire.state.iptables import Ruleset
from podwire.state.share import Share

CHECK_S = 1.0
READ_S = 30.0


class ForwardHook(Protocol):
    """The hooks forward and input of the kernel, as ``kernel.firewall_chains`` has it."""

    def fingerprint(self) -> object:
        """A value that differs when something may have changed."""
        ...

    def tables(self) -> Sequence[FilterTables]:
        """The tables ``filter`` of iptables."""
        ...

    def foreign(self, hook: str = "forward") -> Sequence[ForeignChain]:
        """The chains of other programs in nftables at a hook."""
        ...

    def hold(self, table: FilterTables, ruleset: Ruleset) -> str:
        """Makes one family of a table hold podwire's rules; returns what was written."""
        ...


class FirewallPass:
    """One node; ``networks`` returns the pod networks of the cluster, ``report`` gets the blockers as one text.

    ``report_inputs`` gets the firewalls that drop packets to ports of the node that :attr:`needs` returns.
    """

    def __init__(
        self,
        hook: ForwardHook,
        clock: Clock,
        networks: Callable[[], Sequence[Network]],
        report: Callable[[str], None],
        report_inputs: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.held: tuple[Ruleset, ...] = ()
        self.needs: Callable[[], Sequence[NeededPort]] = tuple
        """Returns the ports of the node that must accept packets."""
        self._report_inputs = report_inputs
        self._hook = hook
        self._clock = clock
        self._networks = networks
        self._report = report
        self._known: object = None
        self._read_at = float("-inf")
        self._problem = ""
        self._log = Log("routing")

    async def run(self) -> None:
        """Checks until cancelled."""
        while True:
            self.check()
            await self._clock.sleep(CHECK_S)

    def check(self) -> None:
        """Reads and writes if something may have changed; a failure is logged, and tried again with the next call."""
        networks, needs = tuple(self._networks()), tuple(self.needs())
        if not networks:
            return
        try:
            present = (self._hook.fingerprint(), networks, needs)
            if present == self._known and self._clock.monotonic() < self._read_at:
                return
            self._pass(networks, needs)
            self._known, self._read_at = (self._hook.fingerprint(), networks, needs), self._clock.monotonic() + READ_S
            problem = ""
        except KernelError as failure:
            problem = str(failure)
        if problem and problem != self._problem:
            self._log.warning("cannot read or change the firewall", problem=problem)
        self._problem = problem

    def _pass(self, networks: Sequence[Network], needs: Sequence[NeededPort]) -> None:
        held: list[Ruleset] = []
        inputs: list[tuple[str, FirewallChain]] = []
        for table in self._hook.tables():
            inputs += table.inputs.items()
            for family, chain in table.chains.items():
                ruleset = forward_ruleset(family, networks, chain)
                if written := self._hook.hold(table, ruleset):
                    self._log.info("changed the firewall", family=family, kind=table.programs.kind, rules=written)
                held += [ruleset] if ruleset.chains else []
        self.held = tuple(held)
        self._report("; ".join(blockers(self._hook.foreign(), networks)))
        foreign = self._hook.foreign("input") if needs else ()
        self._report_inputs("; ".join(input_blockers(inputs, foreign, needs)))

    def shares(self) -> tuple[Share, ...]:
        """The desired state of the kernel, by the last check; none where no rule is needed."""
        return (Share(part="routing", desired=self.held),) if self.held else ()
