"""The command ``podwire ipam``."""

from collections.abc import Iterable

import click

from podwire.cli.options import kubeconfig_option, name_is_typed, name_option, output_option
from podwire.cli.request_timeout import request_timeout

_POOLS = ("POOL", "RANGE", "BLOCKS", "STATE")
_RANGES = ("NODE", "RANGE", "POOL", "IN USE", "FREE", "JUST RELEASED", "LENT", "STATE")
_ADDRESSES = ("ADDRESS", "NODE", "RANGE", "POD")


@click.command()
@name_option
@request_timeout
@kubeconfig_option
@click.option("--addresses", is_flag=True, help="Also list every address in use, with its pod.")
@click.option(
    "--release", "released", metavar="RANGE", help="Delete an unused block of a node that does not exist any more."
)
@output_option
@click.pass_context
def ipam(  # noqa: PLR0913 - one parameter an option, as click calls it
    context: click.Context, name: str, kubeconfig: str | None, addresses: bool, released: str | None, output: str
) -> int:
    """Show the addresses of nodes and pods, and leaks: addresses that nobody uses any more.

    The output has each pool with its claimed blocks and all its blocks, and the ranges of each node; in a local cluster
    also how many addresses of each range are in use. A leak is an address without a pod or a block without a node.
    podwire returns both within two minutes by itself, so look again before you act. The exit status is 1 when there is
    a leak.

    --release deletes the block of a node that no longer exists, without waiting. It refuses a block that a node still
    has, or with an address that is lent to another node or used by a pod.

    \b
    podwire ipam
    podwire ipam --addresses -o json
    podwire ipam --release 10.244.0.64/26
    """
    from podwire.cli.ipam_objects import read_cluster, release
    from podwire.cli.output import print_json
    from podwire.cli.target import local_cluster
    from podwire.cluster.ipamreport import report

    topology = local_cluster(name, kubeconfig, named=name_is_typed(context))
    if released is not None:
        block = release(topology, kubeconfig, released)
        click.echo(f"deleted the block {block.network} of {block.node or 'no node'}")
        return 0
    result = report(read_cluster(topology, kubeconfig))
    if output == "json":
        print_json(result)
        return int(bool(result.leaks))
    if result.pools:
        _print(_POOLS, ((p.name, p.cidr, f"{p.claimed} of {p.blocks}", _pool_state(p.disabled)) for p in result.pools))
    _print(
        _RANGES,
        (
            (
                *(r.node, r.cidr, r.pool or "-"),
                *("-" if number is None else str(number) for number in (r.held, r.free, r.cooling)),
                *(str(r.lent), r.state),
            )
            for r in result.ranges
        ),
    )
    if addresses:
        _print(_ADDRESSES, ((a.address, a.node, a.cidr or "-", a.pod or "-") for a in result.addresses))
    for leak in result.leaks:
        click.echo(f"leak: {leak}")
    return int(bool(result.leaks))


def _pool_state(disabled: bool) -> str:
    return "disabled" if disabled else "in use"


def _print(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    from podwire.model.wording import columns

    click.echo(columns([head, *rows]))
    click.echo()
