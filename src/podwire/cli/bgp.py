"""The command ``podwire bgp``."""

import click

from podwire.cli.completion import node_names
from podwire.cli.options import agent_config_option, output_option, running_option

_HEAD = ("NODE", "PEER", "ADDRESS", "AS", "STATE", "SINCE", "RECEIVED", "SENT", "LAST ERROR")


@click.command()
@click.argument("node", required=False, shell_complete=node_names)
@running_option
@agent_config_option
@output_option
def bgp(node: str | None, name: str | None, config_file: str | None, output: str) -> int:
    """Show the BGP sessions of a node, or of all nodes of a local cluster.

    Each session has the state of RFC 4271, the time since when, the numbers of received and sent routes that its
    filters accepted, and its last error. Agents read the sessions every three seconds. Exit status 1 when a session is
    not established.

    \b
    podwire bgp
    podwire bgp node-1 -o json
    podwire bgp --config /etc/podwire/agent.yaml
    """
    from podwire.bgp.sessionstate import ESTABLISHED
    from podwire.cli.bgp_sessions import read_sessions
    from podwire.cli.output import print_json
    from podwire.model.wording import columns

    sessions = list(read_sessions(node, name, config_file))
    if output == "json":
        print_json([{"node": where, "session": session} for where, session in sessions])
    elif not sessions:
        click.echo("no BGP sessions: the nodes do not route by the backend bgp, or have no peers", err=True)
    else:
        rows = [
            (
                *(where, s.peer, s.address, str(s.as_number), s.state, s.since),
                *(str(s.received), str(s.sent), s.last_error or "-"),
            )
            for where, s in sessions
        ]
        click.echo(columns([_HEAD, *rows]))
    return int(any(session.state != ESTABLISHED for _, session in sessions))
