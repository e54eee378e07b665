"""Runs ``podwire upgrade verify``: sets the stage, tries everything from every node, takes it down.

It holds the Lease of upgrades, since the gates of an upgrade use objects of the same names.
"""

from collections.abc import Mapping

from podwire.errors import ConfigError
from podwire.kube.alone import run_alone
from podwire.kube.client import Client
from podwire.model.meta import Fact
from podwire.upgrade.apply.record import NAME
from podwire.upgrade.nodecommands import agents_of, nodes_ready
from podwire.upgrade.nodepods import image_of
from podwire.upgrade.verify.checks import KINDS, CheckKind, NodeResults
from podwire.upgrade.verify.stage import OutsideTargets, VerifyStage, take_down

_LAST_PORT = 65535


class VerifyOptions(Fact, frozen=True, kw_only=True):
    """What the command line says; ``nodes`` empty: all; ``egress`` and ``observers`` as ``ADDRESS:PORT``."""

    namespace: str = "kube-system"
    image: str = ""
    nodes: tuple[str, ...] = ()
    kinds: tuple[CheckKind, ...] = KINDS
    egress: tuple[str, ...] = ()
    observers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    """The source addresses that observers must see; empty: those of the node."""


async def run(client: Client, options: VerifyOptions) -> tuple[NodeResults, ...]:
    """The results of every node, by name.

    Raises: ConfigError; ClusterError when another run is at work, or pods do not get ready; ApiError.
    """
    outside = OutsideTargets(
        servers=tuple(address_of(text, "--egress") for text in options.egress),
        observers=tuple(address_of(text, "--observer") for text in options.observers),
        sources=options.sources,
    )
    try:
        every = await nodes_ready(client)
        if unknown := [name for name in options.nodes if name not in every]:
            raise ConfigError(
                "--node", "", f"{unknown[0]!r} is not a node of this cluster; the nodes are {', '.join(every)}"
            )
        image = image_of(await agents_of(client, options.namespace), options.image)
        stage = VerifyStage(client, options.namespace, image, outside)

        async def body() -> tuple[NodeResults, ...]:
            try:
                return await try_from(stage, every, options)
            finally:
                await take_down(client, options.namespace)

        return await run_alone(client, options.namespace, NAME, body)
    finally:
        await client.close()


async def try_from(stage: VerifyStage, every: Mapping[str, bool], options: VerifyOptions) -> tuple[NodeResults, ...]:
    """The results of nodes; ``every`` has by node whether it is Ready, and no pod is started where it is not.

    Raises: ClusterError when pods do not get ready; ApiError.
    """
    await stage.set_up([name for name, ready in every.items() if ready], options.kinds)
    chosen = options.nodes or tuple(every)
    results = await stage.check([name for name in chosen if every[name]], options.kinds)
    absent = [NodeResults(node=name, problem="is not Ready") for name in chosen if not every[name]]
    return tuple(sorted((*results, *absent), key=lambda entry: entry.node))


def address_of(text: str, option: str) -> tuple[str, int]:
    """The address and the port of ``ADDRESS:PORT``; an IPv6 address stands in brackets.

    Raises: ConfigError.
    """
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port[:6]) <= _LAST_PORT
    if not colon or not is_port or not host:
        raise ConfigError(option, "", f"expected ADDRESS:PORT, got {text!r}")
    return host.strip("[]"), int(port)
