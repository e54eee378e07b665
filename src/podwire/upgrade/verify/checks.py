"""The connections that ``podwire upgrade verify`` tries from each node, their results, and the table of them. Pure.

| kind | connection | expected |
|---|---|---|
| pod | to a pod of each node, TCP and UDP | reached |
| service | to the address of a Service of these pods, TCP and UDP | reached |
| nodeport | to a port of each node, TCP | reached |
| dns | the name of the Service resolves to its address | reached |
| policy | to a pod that a NetworkPolicy isolates | refused |
| egress | to an address outside of the pods' network | reached |
| egress | to an observer, which tells the source address that it sees | see below |

An observer is a pod in the network of another node, or ``podwire upgrade node serve`` on a machine outside. Networks
differ in whether nodes see a pod or its node: an observer on a node may see either, and nothing else. A machine outside
must see the node, or an address that the user names, such as that of a NAT gateway.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from podwire.model.meta import Fact

PORT = 9483
"""The port of the pods that answer, TCP and UDP."""
NODE_PORT = 9484
"""The port of observers in the network of a node."""
CheckKind = Literal["pod", "service", "nodeport", "dns", "policy", "egress", "server"]
KINDS: tuple[CheckKind, ...] = ("pod", "service", "nodeport", "dns", "policy", "egress")
Transport = Literal["tcp", "udp", "dns", "name"]
"""``dns``: a query to the address as to a name server; ``name``: the resolver of the pod."""


class ConnectionCheck(Fact, frozen=True, kw_only=True):
    """One connection to try."""

    kind: CheckKind
    transport: Transport = "tcp"
    target: str
    """In words, such as ``pod on node-2``."""
    address: str
    """An IP address; for ``name`` the name."""
    port: int = PORT
    expected: str = ""
    """For ``name``: the address to which the name must resolve; for ``dns``: the name to ask for; otherwise empty."""
    refused: bool = False
    """Whether the connection must not be made."""
    sources: tuple[str, ...] = ()
    """The addresses of which an observer must see one; empty: the other side is no observer."""
    own_source: bool = False
    """Whether an observer may also see the pod's own address."""


class CheckResult(Fact, frozen=True, kw_only=True):
    """What became of a connection; ``problem`` is empty when it is as expected."""

    kind: CheckKind
    target: str
    transport: Transport = "tcp"
    problem: str = ""


class NodeResults(Fact, frozen=True, kw_only=True):
    """The results of one node; ``problem``: why there are none."""

    node: str
    results: tuple[CheckResult, ...] = ()
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether everything is as expected."""
        return not self.problem and not any(result.problem for result in self.results)

    def of(self, kind: CheckKind) -> tuple[CheckResult, ...]:
        """The results of a kind."""
        return tuple(result for result in self.results if result.kind == kind)

    def problems(self) -> Iterable[str]:
        """Everything that is not as expected, in words."""
        if self.problem:
            yield f"{self.node}: {self.problem}"
        for result in self.results:
            if result.problem:
                yield f"{self.node}: {result.kind}: {result.target} by {result.transport}: {result.problem}"


def encode(checks: Sequence[ConnectionCheck]) -> str:
    """Checks as one argument of a command."""
    return msgspec.json.encode(checks).decode()


def decode(text: str) -> tuple[ConnectionCheck, ...]:
    """The checks of an argument.

    Raises: msgspec.DecodeError.
    """
    return msgspec.json.decode(text, type=tuple[ConnectionCheck, ...])


def results_line(results: Sequence[CheckResult]) -> str:
    """Results as one line of a log."""
    return msgspec.json.encode(results).decode()


def results_of(node: str, log: str) -> NodeResults:
    """The results in the last line of a pod's log."""
    for line in reversed(log.splitlines()):
        try:
            return NodeResults(node=node, results=msgspec.json.decode(line, type=tuple[CheckResult, ...]))
        except msgspec.DecodeError:
            continue
    return NodeResults(node=node, problem=f"the pod gave no results: {' '.join(log.split())[-300:] or 'no log'}")


def table(nodes: Sequence[NodeResults], kinds: Sequence[CheckKind] = KINDS) -> str:
    """Nodes as rows and kinds as columns, each cell with the number of connections as expected of all."""
    head = ["NODE", *(kind.upper() for kind in kinds)]
    rows = [[entry.node, *(_cell(entry, kind) for kind in kinds)] for entry in nodes]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _cell(entry: NodeResults, kind: CheckKind) -> str:
    results = entry.of(kind)
    if not results:
        return "?" if entry.problem else "-"
    good = sum(not result.problem for result in results)
    return f"ok {good}" if good == len(results) else f"FAILED {len(results) - good} of {len(results)}"
