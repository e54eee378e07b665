"""The command ``podwire policy log``."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import click
import msgspec

from podwire.cli.options import agent_config_option, kubeconfig_option, name_is_typed, name_option, output_option
from podwire.cli.policy_agents import Agents, NodeLine, agents_of
from podwire.cli.request_timeout import request_timeout
from podwire.cli.target import local_cluster
from podwire.policy.status.logged import LoggedPacket, log_line
from podwire.policy.status.nodes import LOG_PAGE, complaints

_HELP = """Show packets that policies dropped, would have dropped in audit, or allowed (where that is logged).

Each line names both ends and the reason, in the words of `podwire why`. Agents keep the last 1,000 lines of their node,
and also write them to their log. The setting `policy.log` and the annotation `podwire.io/log: all|drops|none` of a
policy choose which packets are logged; the number of packets a second of each rule is limited.

\b
podwire policy log
podwire policy log --follow
podwire policy log --policy shop/db --last 20
podwire policy log --config /etc/podwire/agent.yaml
"""
_ALL = 1000
"""The number of lines that an agent keeps."""


@click.command(help=_HELP)
@name_option
@request_timeout
@kubeconfig_option
@agent_config_option
@click.option("-f", "--follow", is_flag=True, help="Show new lines until interrupted.")
@click.option(
    "--last", type=click.IntRange(0), default=_ALL, show_default=True, help="At most this many lines of each node."
)
@click.option(
    "--policy", metavar="POLICY", default="", help="Only this policy: namespace/name, or the name of a cluster policy."
)
@output_option
@click.pass_context
def log(  # noqa: PLR0913 - one parameter an option, as click calls it
    context: click.Context,
    name: str,
    kubeconfig: str | None,
    config_file: str | None,
    follow: bool,
    last: int,
    policy: str,
    output: str,
) -> int:
    """Prints the lines."""
    named = name_is_typed(context)
    topology = None if config_file is not None else local_cluster(name, kubeconfig, named=named)
    with agents_of(topology, kubeconfig, config_file) as agents:
        reader = Reader(agents)
        while True:
            for packet in last_of(reader.read(_ALL), policy, last):
                line = msgspec.json.encode(packet).decode() if output == "json" else log_line(packet)
                sys.stdout.write(f"{line}\n")
            for problem in reader.complaints():
                click.echo(f"podwire: {problem}", err=True)
            if not follow:
                return 1 if reader.failures else 0
            sys.stdout.flush()
            last = _ALL
            time.sleep(agents.poll_s)


def last_of(logged: Sequence[LoggedPacket], policy: str, last: int) -> list[LoggedPacket]:
    """At most the last ``last`` packets of each node; with ``policy``, only the packets that it decided."""
    shown: list[LoggedPacket] = []
    per_node: Counter[str] = Counter()
    for packet in reversed(logged):
        if (not policy or policy in packet.policies) and per_node[packet.node] < last:
            per_node[packet.node] += 1
            shown.append(packet)
    return shown[::-1]


class Reader:
    """Reads the logs of nodes repeatedly; returns each line once."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._last_numbers: dict[str, int] = {}
        """The number of the last line that was read, by node."""
        self._reported: dict[str, str] = {}
        """The failures that :meth:`complaints` returned last, by node."""
        self.failures: dict[str, str] = {}
        """Nodes whose agents did not answer the last time, and why."""

    def complaints(self) -> list[str]:
        """Messages for failures that were not returned before."""
        new = {node: problem for node, problem in self.failures.items() if self._reported.get(node) != problem}
        self._reported = dict(self.failures)
        return complaints(new)

    def read(self, last: int) -> list[LoggedPacket]:
        """The lines that were not read before, by time; of each node at most the last ``last``."""
        self.failures.clear()
        lines = self._fetch({node: self._last_numbers.get(node, 0) for node in self._agents.nodes}, last)
        lines += self._fetch(dict.fromkeys(self._restarted(lines), 0), last)
        packets = []
        for node, line in lines:
            self._last_numbers[node] = line.pop("number")
            packets.append(msgspec.convert(line, LoggedPacket))
        return sorted(packets, key=lambda packet: packet.at)

    def _restarted(self, lines: Sequence[NodeLine]) -> Iterator[str]:
        """The nodes without new lines whose agents were restarted, so that their line numbers begin at 1 again."""
        quiet = self._last_numbers.keys() - {node for node, _ in lines} - self.failures.keys()
        for node, newest in self._fetch(dict.fromkeys(sorted(quiet), 0), 1):
            if newest["number"] < self._last_numbers[node]:
                yield node

    def _fetch(self, after: Mapping[str, int], last: int) -> list[NodeLine]:
        """At most the last ``last`` lines of each node after a line number."""
        pages = {node: f"{LOG_PAGE}?after={number}&last={last}" for node, number in after.items()}
        return list(self._agents.ask(pages, self.failures)) if pages else []
