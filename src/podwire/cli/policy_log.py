"""The command ``podwire policy log``."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import click
import msgspec

from podwire.cli.options import name_option
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
"""As many as an agent keeps."""


@click.command(help=_HELP)
@name_option
@request_timeout
@click.option("--kubeconfig", metavar="FILE", help="A cluster that is not a local one.  [default: $KUBECONFIG]")
@click.option("--config", "config_file", metavar="FILE", help="On a real node: the agent's configuration.")
@click.option("-f", "--follow", is_flag=True, help="Show new lines until interrupted.")
@click.option(
    "--last", type=click.IntRange(0), default=_ALL, show_default=True, help="At most this many lines of each node."
)
@click.option(
    "--policy", metavar="POLICY", default="", help="Only this policy: namespace/name, or the name of a cluster policy."
)
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True)
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
    """Reads and prints."""
    named = context.get_parameter_source("name") is not click.core.ParameterSource.DEFAULT
    topology = None if config_file is not None else local_cluster(name, kubeconfig, named=named)
    with agents_of(topology, kubeconfig, config_file) as agents:
        reader = Reader(agents)
        while True:
            for one in last_of(reader.read(_ALL), policy, last):
                sys.stdout.write(f"{msgspec.json.encode(one).decode() if output == 'json' else log_line(one)}\n")
            for problem in reader.complaints():
                click.echo(f"podwire: {problem}", err=True)
            if not follow:
                return 1 if reader.failures else 0
            sys.stdout.flush()
            last = _ALL
            time.sleep(agents.poll_s)


def last_of(found: Sequence[LoggedPacket], policy: str, last: int) -> list[LoggedPacket]:
    """The last lines of each node, at most ``last``; only those about ``policy`` where it is given."""
    shown: list[LoggedPacket] = []
    left: Counter[str] = Counter()
    for one in reversed(found):
        if (not policy or policy in one.policies) and left[one.node] < last:
            left[one.node] += 1
            shown.append(one)
    return shown[::-1]


class Reader:
    """Reads the logs of nodes repeatedly; each line once."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._seen: dict[str, int] = {}
        self._told: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        """Nodes whose agents did not answer the last time, and why."""

    def complaints(self) -> list[str]:
        """Messages for failures that were not returned before."""
        new = {node: problem for node, problem in self.failures.items() if self._told.get(node) != problem}
        self._told = dict(self.failures)
        return complaints(new)

    def read(self, last: int) -> list[LoggedPacket]:
        """The lines of all nodes that were not read before, by time; of each node at most the last ``last``."""
        self.failures.clear()
        found = self._ask({node: self._seen.get(node, 0) for node in self._agents.nodes}, last)
        found += self._ask(dict.fromkeys(self._anew(found), 0), last)
        made = []
        for node, one in found:
            self._seen[node] = one.pop("number")
            made.append(msgspec.convert(one, LoggedPacket))
        return sorted(made, key=lambda one: one.at)

    def _anew(self, found: Sequence[NodeLine]) -> Iterator[str]:
        """The nodes whose agents were restarted, so that their line numbers begin at 1 again."""
        quiet = self._seen.keys() - {node for node, _ in found} - self.failures.keys()
        for node, newest in self._ask(dict.fromkeys(sorted(quiet), 0), 1):
            if newest["number"] < self._seen[node]:
                yield node

    def _ask(self, after: Mapping[str, int], last: int) -> list[NodeLine]:
        """At most the last ``last`` lines of each node after a line number."""
        pages = {node: f"{LOG_PAGE}?after={number}&last={last}" for node, number in after.items()}
        return list(self._agents.ask(pages, self.failures)) if pages else []
