"""Removes podwire from a node: files of the container runtime, rules, devices, routes, child processes, state.

Each :class:`RemovalStep` finds what carries podwire's marks, so it works without an agent, after a crash, and twice.
Steps run in the order of :func:`steps`: first the runtime's files, so that no new pod comes; then Services and
policies; then what carries packets. Objects of other programs are never touched.

Rules of Services in iptables and IPVS have the names that kube-proxy gives its own. They are removed only if the
configuration has the part ``proxy``. Sysctls get the values that the agent recorded before it wrote them, unless
somebody changed them since.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from podwire.agent.config import AgentConfig
from podwire.cni import program
from podwire.cni.bridgedpods import OWNER as BRIDGED
from podwire.cni.chain.bandwidth import TYPE as BANDWIDTH
from podwire.cni.chain.bandwidth import BandwidthPlugin
from podwire.cni.chain.firewall import TYPE as FIREWALL
from podwire.cni.chain.firewall import FirewallPlugin
from podwire.cni.ipam.ledger import Ledger
from podwire.cni.plumbing import KernelPlumber
from podwire.cni.wiring import HOST_MAC
from podwire.cni.wiring import NODE_OWNER as PODS
from podwire.dns.nodelocal.plan import OWNER as NODE_DNS
from podwire.errors import ClusterError, CniError, KernelError, Unsupported
from podwire.kernel import bpf_state, network, sysctl, sysctl_record
from podwire.kernel.iptables_tables import drop_tables
from podwire.kernel.kinds import KERNEL_KINDS
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.policy import modes as policy_modes
from podwire.policy.bridges import dataplane as bridges
from podwire.proxy.modes import ServiceModes
from podwire.routing import hostfiles
from podwire.routing.linkfiles import link_files
from podwire.routing.machine import OWNER as ROUTING
from podwire.runtime.children import stop_recorded
from podwire.runtime.unixsockets import answers
from podwire.state.chain_marks import FORWARD, MASQUERADE
from podwire.state.iptables import Ruleset

TABLES = "podwire-"
"""The names of all nftables tables of podwire begin with it."""
_IPTABLES = ("raw", "mangle", "nat", "filter", "security")
CONFLIST = "10-podwire.conflist"


class RemovalStep(NamedTuple):
    """One subject of the removal; ``run`` yields what it removed, and with True as argument what it would remove."""

    subject: str
    run: Callable[[bool], Iterable[str]]


def check(config: AgentConfig, *, with_pods: bool) -> None:
    """Refuses while the agent runs, or pods depend on it.

    Raises: ClusterError saying what to do.
    """
    if answers(config.agent_socket):
        raise ClusterError(f"the agent of this node runs ({config.agent_socket} answers); stop it first")
    pods = () if with_pods else attached(config)
    if pods:
        names = ", ".join(pods[:3]) + (f" and {len(pods) - 3} more" if len(pods) > 3 else "")
        raise ClusterError(f"pods of this node have its network: {names}; drain the node first, or give --with-pods")


def attached(config: AgentConfig) -> tuple[str, ...]:
    """The pods in the address ledger, as ``namespace/name``, and those that only have rules of chained plugins."""
    if not config.database.exists():
        return ()
    ledger = Ledger(config.database)
    try:
        pods = sorted(f"{item.namespace}/{item.pod}" for item in ledger.attachments().values())
        return (*pods, *(name for kind in (FIREWALL, BANDWIDTH) for name in ledger.facts(f"{kind} ")))
    finally:
        ledger.close()


def steps(config: AgentConfig) -> tuple[RemovalStep, ...]:
    """The steps for this thread's network namespace and the files that the configuration names."""
    services = [
        RemovalStep(f"Services in mode {name}", partial(_cleared, name, partial(ServiceModes().clear, name)))
        for name in ServiceModes().names()
        if "proxy" in config.parts
    ]
    return (
        RemovalStep("files of the container runtime", partial(_runtime_files, config)),
        *services,
        RemovalStep("policies", partial(_cleared, "policies", policy_modes.clear_all)),
        RemovalStep("policies on bridges", partial(_cleared, "policies on bridges", bridges.clear)),
        RemovalStep("child processes", partial(_children, config)),
        RemovalStep("rules of chained plugins", partial(_chained, config)),
        RemovalStep("devices and routes", _network),
        RemovalStep("iptables", _chains),
        RemovalStep("tables", _tables),
        RemovalStep("BPF programs", partial(_bpf, config)),
        RemovalStep("files for network managers", partial(_link_files, config)),
        RemovalStep("sysctls", partial(_sysctls, config)),
        RemovalStep("state", partial(_state, config)),
    )


def _runtime_files(config: AgentConfig, dry: bool) -> Iterator[str]:
    paths = [config.cni.conf_path / CONFLIST] if config.cni.conf_dir else []
    if config.cni.bin_dir:
        paths.append(config.cni.bin_path / program.NAME)
        stand_ins = (name for name in program.STAND_INS if program.is_free(config.cni.bin_path, name))
        paths += [config.cni.bin_path / name for name in stand_ins]
    for path in paths:
        if path.exists():
            if not dry:
                path.unlink()
            yield str(path)


def _cleared(subject: str, clear: Callable[[], bool], dry: bool) -> Iterator[str]:
    """Data planes know what is theirs only while they remove it, so a dry run names the subject."""
    if dry:
        yield f"rules of {subject}, if there are any"
        return
    try:
        if clear():
            yield f"rules of {subject}"
    except Unsupported:
        return  # a kernel without the subsystem holds nothing of it


def _children(config: AgentConfig, dry: bool) -> Iterator[str]:
    folder = Path(config.run_dir, "routing", "children")
    for name in sorted(path.stem for path in folder.glob("*.json")):
        yield f"process {name}"
    if not dry:
        asyncio.run(stop_recorded(folder))


def _chained(config: AgentConfig, dry: bool) -> Iterator[str]:
    """What podwire wrote as ``firewall`` and ``bandwidth`` for pods that still run, by its ledger."""
    if not config.database.exists():
        return
    ledger, plumber = Ledger(config.database), KernelPlumber()
    try:
        plugins: dict[str, FirewallPlugin | BandwidthPlugin] = {
            FIREWALL: FirewallPlugin(plumber.filter, plumber.zones, ledger),
            BANDWIDTH: BandwidthPlugin(plumber.shaping, ledger),
        }
        for kind, plugin in plugins.items():
            for name in ledger.facts(f"{kind} "):
                if not dry:
                    plugin.forget(name)
                yield f"what the plugin {kind} wrote for {name.removeprefix(kind).strip()}"
    except CniError as failure:
        raise ClusterError(f"{failure.message}: {failure.details}") from failure
    finally:
        plumber.close()
        ledger.close()


def _network(dry: bool) -> Iterator[str]:
    with Netlink() as netlink:
        for owner in (ROUTING, PODS, BRIDGED, NODE_DNS):
            if dry:
                yield from network.read(netlink, owner).lines()
            else:
                yield from map(str, network.remove(netlink, owner).check().applied)


def _chains(dry: bool) -> Iterator[str]:
    """Chains of routing in iptables, and the tables that podwire made for them."""
    kind = KERNEL_KINDS["iptables"]
    try:
        for mark in (MASQUERADE, FORWARD):
            if any(isinstance(value, Ruleset) and value.chains for value in kind.read(None, mark)):
                if not dry:
                    kind.apply(None, mark, ())
                yield f"iptables rules in {', '.join(mark.tables)}"
        if not dry:
            drop_tables(_IPTABLES, None)
    except Unsupported:
        return  # without iptables there are no such rules


def _tables(dry: bool) -> Iterator[str]:
    try:
        with Nft() as nft:
            for family, name in nft.tables():
                if name.startswith(TABLES):
                    if not dry:
                        nft.delete(family, name)
                    yield f"table {family} {name}"
    except Unsupported:
        return  # a kernel without nf_tables has no tables


def _bpf(config: AgentConfig, dry: bool) -> Iterator[str]:
    folder = config.dns.folder
    if folder in bpf_state.folders():
        if not dry:
            bpf_state.remove_folder(folder)
        yield f"BPF programs and maps in {bpf_state.BPF_FILE_SYSTEM}/{bpf_state.OWNED}/{folder}"


def _link_files(config: AgentConfig, dry: bool) -> Iterator[str]:
    if not config.link_files.etc:
        return
    etc, files = Path(config.link_files.etc), tuple(link_files(HOST_MAC))
    if dry:
        yield from (str(etc / file.path) for file in files if (etc / file.path).exists())
    else:
        yield from hostfiles.remove(etc, files)


def _sysctls(config: AgentConfig, dry: bool) -> Iterator[str]:
    values = sysctl_record.read(config.sysctl_record).values
    for item in sysctl.restorable(values) if dry else sysctl.restore(values):
        yield f"the value of {item.path}, which was {item.value} before"


def _state(config: AgentConfig, dry: bool) -> Iterator[str]:
    for folder in (Path(config.run_dir), Path(config.state_dir)):
        if folder.exists() and not (folder.is_mount() and not any(folder.iterdir())):
            if not dry:
                _delete(folder)
            yield f"folder {folder}"


def _delete(folder: Path) -> None:
    """Deletes a folder; one that is mounted, as in a pod, is emptied."""
    if not folder.is_mount():
        shutil.rmtree(folder)
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def run(config: AgentConfig, say: Callable[[str], None], *, dry: bool, with_pods: bool) -> None:
    """Runs all steps; a step that fails does not stop the others.

    Raises: ClusterError when the agent runs or pods depend on it, and behind all steps when some failed.
    """
    check(config, with_pods=with_pods)
    verb, failures = "would remove" if dry else "removed", []
    if with_pods:
        _detach(config, say, dry)
    for step in steps(config):
        try:
            for subject in step.run(dry):
                say(f"{verb} {subject}")
        except (KernelError, OSError) as failure:
            failures.append(f"{step.subject}: {failure}")
    if failures:
        raise ClusterError("not everything could be removed:\n" + "\n".join(f"  {line}" for line in failures))


def _detach(config: AgentConfig, say: Callable[[str], None], dry: bool) -> None:
    """Removes the devices of pods that are still attached; their containers run on without a network."""
    if not config.database.exists():
        return
    ledger = Ledger(config.database)
    try:
        links = [item.host_link for item in ledger.attachments().values()]
    finally:
        ledger.close()
    if not dry:
        plumber = KernelPlumber()
        try:
            plumber.remove(links)
        finally:
            plumber.close()
    for link in links:
        say(f"{'would remove' if dry else 'removed'} device {link} of a pod")
