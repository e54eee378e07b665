"""The command ``podwire state``."""

import click

from podwire.cli.completion import state_names
from podwire.cli.options import agent_config_option, output_option, running_option
from podwire.errors import PodwireError

PARTS = ("fabric", "cni", "routing", "policy", "proxy", "loadbalancer", "dns")
"""The parts of podwire: that of the fabric, and those of an agent."""
TROUBLE = 2
"""Exit status of ``--diff`` when the comparison failed, as that of diff(1)."""


@click.command()
@click.argument("node", shell_complete=state_names)
@running_option
@click.option("--diff", is_flag=True, help="Compare with the present state of the kernel.")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(PARTS),
    help="Only this part; can be repeated.",
)
@click.option("--saved", metavar="FILE", help="Read the desired state from an earlier output (- is stdin).")
@agent_config_option
@output_option
def state(  # noqa: PLR0913 - one parameter an option, as click calls it
    node: str,
    name: str | None,
    diff: bool,
    parts: tuple[str, ...],
    saved: str | None,
    config_file: str | None,
    output: str,
) -> int:
    """Show what a node's kernel should hold, or how it differs.

    NODE is a node's name; in a local cluster also `switch`, `router` or `host`, which hold the fabric alone. Each part
    of podwire states links, addresses, routes, neighbours, sysctls, and the tables and sets of its data plane; `cni`
    also states the inside of each pod. Save the text and pass it to --saved to compare while the agent is down, or to
    see what has changed since.

    With --diff, a line with + is missing in the kernel; a line with - is in the kernel, carries podwire's mark and
    should not be there. Objects of other owners are never shown, nor is what differs for less than 0.3 s while the
    agent writes a change. The exit status is 0 without a difference, 1 with a difference, 2 when the comparison failed.

    \b
    podwire state node-1 --part cni
    podwire state node-1 --diff
    podwire state node-1 > wanted.txt; podwire state node-1 --diff --saved wanted.txt
    """
    from podwire.cli.state_document import StateRequest, print_state

    try:
        return print_state(StateRequest(node, name, parts, saved, config_file), output, diff=diff)
    except PodwireError as failure:
        if not diff:
            raise
        click.echo(f"podwire: {failure}", err=True)
        return TROUBLE
