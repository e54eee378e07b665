"""What the steps ``network-back`` and ``services-back`` of a migration do on their node. Each can be repeated.

The agent has ended; the kernel still holds what it wrote. Pods that podwire wired keep running: their devices, routes
and neighbours stay, and so do the tables of hostPorts and masquerade while there are such pods. Their addresses become
files of ``host-local``, so that it assigns none again and releases each at the pod's DEL.
"""

import asyncio
from pathlib import Path

from podwire.agent.config import AgentConfig
from podwire.cni.ipam import hostlocal
from podwire.cni.ipam.ledger import Attachment, Ledger
from podwire.errors import Unsupported
from podwire.install.migration.configurations import SAVED
from podwire.install.migration.nodecheck import kube_proxy_mode
from podwire.install.migration.record import NodeBefore
from podwire.install.migration.takeover import Pause, Say, saved_configurations, wait_until
from podwire.install.uninstall import CONFLIST
from podwire.kernel import iptables_chains, network
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.policy import modes as policy_modes
from podwire.policy.bridges import dataplane as bridges
from podwire.proxy.modes import ServiceModes
from podwire.routing.machine import OWNER as ROUTING
from podwire.runtime.children import stop_recorded
from podwire.runtime.files import write_atomically
from podwire.runtime.unixsockets import answers
from podwire.state.chain_marks import IPTABLES_MARK, ChainMark
from podwire.state.network import parse

_LASTING = ("podwire-hostport", "podwire-masquerade", "podwire-proxy", "podwire-userspace")
"""Tables that running pods need, and those of Services, which the next step removes."""
_MARK = ChainMark(tables=("nat",), constant={"nat": frozenset((IPTABLES_MARK,))})


def return_network(config: AgentConfig, before: NodeBefore, say: Say, pause: Pause) -> None:
    """The step ``network-back``.

    Raises: ClusterError while the agent runs; KernelError, OSError.
    """
    wait_until(lambda: not answers(config.agent_socket), f"the agent still runs: {config.agent_socket} answers", pause)
    if "cni" in config.parts:
        if config.cni.host_local:
            _return_addresses(config, Path(config.cni.host_local), say)
        for path in saved_configurations(config.cni.conf_path):
            path.rename(path.with_name(path.name.removesuffix(SAVED)))
            say(f"moved {path} back")
        ours = config.cni.conf_path / CONFLIST
        if ours.exists():
            ours.unlink()
            say(f"removed {ours}")
    if "policy" in config.parts:
        _clear_policies(say)
    if "routing" in config.parts:
        _return_routes(before, say)
        asyncio.run(stop_recorded(Path(config.run_dir, "routing", "children")))
    _remove_tables(say)


def _return_addresses(config: AgentConfig, directory: Path, say: Say) -> None:
    """Makes host-local's files those of the pods that run; an unknown file stays."""
    if not config.database.exists():
        return
    ledger = Ledger(config.database)
    try:
        attachments = list(ledger.attachments().values())
    finally:
        ledger.close()
    directory.mkdir(parents=True, exist_ok=True)
    wired = {address: item for item in attachments if item.host_link for address in item.addresses}
    imported = {address for item in attachments if not item.host_link for address in item.addresses}
    for item in hostlocal.read(directory):
        for address in item.addresses:
            if address not in imported and address not in wired:
                Path(directory, address).unlink()
                say(f"released {address} of a pod that has ended")
    for address, item in wired.items():
        data = file_of(item)
        path = Path(directory, address)
        if not path.exists() or path.read_bytes() != data:
            write_atomically(path, data)
            say(f"handed {address} of {item.namespace}/{item.pod} to host-local")


def file_of(attachment: Attachment) -> bytes:
    """The content of host-local's file: container and interface as two lines, ended by CR LF between them."""
    return f"{attachment.key.container}\r\n{attachment.key.ifname}".encode()


def _clear_policies(say: Say) -> None:
    if policy_modes.clear_all():
        say("removed the rules of policies")
    try:
        if bridges.clear():
            say("removed the rules of policies on bridges")
    except Unsupported:
        pass  # a kernel without nf_tables has none


def _return_routes(before: NodeBefore, say: Say) -> None:
    routes = parse("\n".join(before.routes)).routes
    with Netlink() as netlink:
        network.replace_routes(netlink, routes).check()
        for change in network.remove(netlink, ROUTING).check().applied:
            say(f"routing: {change}")
    for route in routes:
        say(f"restored {route}")


def _remove_tables(say: Say) -> None:
    try:
        with Nft() as nft:
            for family, name in nft.tables():
                if name.startswith("podwire-") and name not in _LASTING:
                    nft.delete(family, name)
                    say(f"removed table {family} {name}")
    except Unsupported:
        pass  # a kernel without nf_tables has no tables


def return_services(config: AgentConfig, before: NodeBefore, say: Say, pause: Pause) -> None:
    """The step ``services-back``: kube-proxy's rules are there, then podwire's are removed.

    Chains that kube-proxy also has stay where it uses them; only podwire's mark is removed.

    Raises: ClusterError when kube-proxy writes no rules; KernelError.
    """
    if "proxy" not in config.parts:
        return
    mode = before.kube_proxy
    if mode:
        wait_until(lambda: _is_programmed(mode), f"kube-proxy has written no rules in mode {mode}", pause)
    shared = {mode} & {"iptables", "ipvs"}
    modes = ServiceModes()
    for name in modes.names():
        try:
            if name not in shared and modes.clear(name):
                say(f"removed the rules of Services in mode {name}")
        except Unsupported:
            continue
    if mode == "iptables":
        iptables_chains.apply(None, _MARK, ())


def _is_programmed(mode: str) -> bool:
    """Whether kube-proxy has written rules; in mode iptables its chains may be those that podwire took over."""
    if kube_proxy_mode() == mode:
        return True
    if mode != "iptables":
        return False
    saved = [tables for _, kinds in iptables_chains.saved_by_kind(None, ("nat",)) for tables in kinds.values()]
    chains = {name for tables in saved for name in tables.get("nat", {})}
    return IPTABLES_MARK in chains and "KUBE-PROXY-CANARY" in chains
