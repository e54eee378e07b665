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
    """Show the planned state of a node's kernel, or its differences from the kernel.

    NODE is a node's name; in a local cluster also `switch`, `router` or `host`, which have only the fabric. Each part
    of podwire plans links, addresses, routes, neighbours, sysctls, and the tables and sets of its data plane; `cni`
    also plans the inside of each pod. To compare while the agent is down, or to see later changes, save the output and
    pass it to --saved.

    With --diff, a line with + is missing in the kernel; a line with - is in the kernel, has podwire's owner mark, and
    should not be there. Objects of other programs are never shown, nor are differences that last less than 0.3 s while
    the agent writes a change. The exit status is 0 without a difference, 1 with a difference, and 2 when the comparison
    failed.

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
