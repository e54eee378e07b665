"""The virtual servers of mode ``ipvs`` in one network namespace, and the connections of removed ones.

Virtual servers with our flag are ours. Virtual servers of kube-proxy have no mark: while the device has no alias of
ours, they are the virtual servers at the addresses of the device and at the node ports in the sets, and they become
ours. All other virtual servers are foreign, and so are those in ``excludeCIDRs`` without our flag.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from ipaddress import ip_address, ip_network

import msgspec

from podwire.errors import KernelNotFound, Unsupported
from podwire.kernel import netns
from podwire.kernel.conntrack import Conntrack, Flow
from podwire.kernel.ipvs import Ipvs, Timeouts
from podwire.kernel.ipvs_table import IpvsTable, listed, listed_key
from podwire.kernel.netns import NetnsPath
from podwire.proxy.dataplanes.ipvs.compile import flags_of
from podwire.proxy.dataplanes.ipvs.contents import NodeContents
from podwire.proxy.servicemap import IpvsSettings
from podwire.state import ipvs_changes
from podwire.state.ipvs import OWNER_FLAG, Destination, Key, VirtualServer, endpoint_text
from podwire.state.ipvs_changes import Step


def check_scheduler(name: str) -> None:
    """Creates a virtual server with a scheduler in a new namespace, so that the kernel loads the scheduler's module.

    Raises: Unsupported when the kernel has no such scheduler; KernelError.
    """
    server = VirtualServer(Key("tcp", "198.51.100.0", 20000), name, flags_of(name))
    descriptor = netns.create_anonymous()
    try:
        with Ipvs(descriptor) as scratch:
            scratch.apply((Step("add", server),))
    except KernelNotFound as failure:
        raise Unsupported(f"ip_vs_{name}", detail=f"the kernel has no scheduler {name}") from failure
    finally:
        os.close(descriptor)


class KubeProxyServers(msgspec.Struct, frozen=True):
    """Where the virtual servers of kube-proxy are; empty when the namespace has none."""

    addresses: Set[str] = frozenset()
    """The addresses of the device."""
    node_ports: Set[tuple[str, int]] = frozenset()
    """Protocols and ports, each at every address of the node."""


class VirtualServers:
    """Our virtual servers in one network namespace (None: that of this process), and which of them drain.

    Raises: Unsupported when the kernel has no IPVS.
    """

    def __init__(self, netns_path: NetnsPath) -> None:
        self._ipvs = Ipvs(netns_path)
        self._table = IpvsTable(netns_path)
        self._present: dict[Key, VirtualServer] = {}
        """Our virtual servers in the kernel, including real servers that only keep existing connections."""
        self._draining: set[Key] = set()
        """Virtual servers with real servers that only keep existing connections."""
        self.foreign: frozenset[Key] = frozenset()
        """The virtual servers of other programs, as they were read last."""

    def close(self) -> None:
        """Closes the socket to the kernel; the virtual servers stay."""
        self._ipvs.close()
        self._table.close()

    def altered(self) -> bool:
        """Whether a virtual server of ours is gone, or has another scheduler, other real servers or other weights."""
        table = self._table.read()
        return table is not None and any(
            table.get(listed_key(key)) != listed(server) for key, server in self._present.items()
        )

    def read(self, exclude: Iterable[str], of_kube_proxy: KubeProxyServers) -> None:
        """Reads which virtual servers are ours, including those of kube-proxy, and which are foreign.

        Virtual servers that were ours before stay ours even without the flag, which ``ipvsadm -E`` removes.

        Raises: KernelError.
        """
        ranges = [ip_network(text) for text in exclude]

        def ours(server: VirtualServer) -> bool:
            key = server.key
            if server.flags & OWNER_FLAG or key in self._present:
                return True
            address = ip_address(key.address)
            if any(address in network for network in ranges):
                return False
            return key.address in of_kube_proxy.addresses or (key.protocol, key.port) in of_kube_proxy.node_ports

        listed = {server.key: server for server in self._ipvs.servers()}
        own = [key for key, server in listed.items() if ours(server)]
        self._present = {server.key: server for server in self._ipvs.read(own)} if own else {}
        self.foreign = frozenset(listed.keys() - set(own))

    def hold(self, contents: NodeContents) -> Sequence[Step]:
        """Makes the kernel hold exactly the virtual servers of the contents; to be called after :meth:`read`.

        Raises: KernelError.
        """
        desired = self._desired(contents)
        steps = ipvs_changes.plan(self._present, desired)
        self._ipvs.apply(steps)
        self._present = ipvs_changes.after(self._present, steps)
        self._draining = set(ipvs_changes.draining(self._present, desired))
        return steps

    def change(self, keys: Iterable[Key], contents: NodeContents) -> Sequence[Step]:
        """Makes the kernel hold the virtual servers with these keys, without reading the kernel.

        Raises: KernelError.
        """
        own = [key for key in keys if key not in self.foreign]
        before = {key: self._present[key] for key in own if key in self._present}
        desired = self._desired(contents, own)
        steps = ipvs_changes.plan(before, desired, own)
        self._ipvs.apply(steps)
        self._record(before, steps)
        self._draining -= set(own)
        now = {key: self._present[key] for key in own if key in self._present}
        self._draining |= set(ipvs_changes.draining(now, desired))
        return steps

    def remove_idle(self, contents: NodeContents, *, reset: bool, keys: Iterable[Key] | None = None) -> list[str]:
        """Removes draining real servers whose last connection has ended, of these virtual servers (None: of all).

        With ``reset``, real servers whose endpoint no longer serves are removed with their connections. Returns the
        addresses of deleted virtual servers.

        Raises: KernelError.
        """
        freed: list[str] = []
        for key in self._draining.intersection(self._draining if keys is None else keys):
            server, desired = self._present[key], self._desired(contents, (key,))
            retired = {
                destination.endpoint for destination in ipvs_changes.draining({key: server}, desired).get(key, ())
            }
            counted = [
                (destination, 0 if reset and not _serves(contents, key, destination) else connections)
                for destination, connections in self._ipvs.destinations(key)
                if destination.endpoint in retired
            ]
            steps = ipvs_changes.idle(server, counted, desired=key in desired)
            self._ipvs.apply(steps)
            self._record({key: server}, steps)
            if key not in self._present:
                self._draining.discard(key)
                freed.append(key.address)
            elif not ipvs_changes.draining({key: self._present[key]}, desired):
                self._draining.discard(key)
        return freed

    def delete_all(self) -> frozenset[Key]:
        """Deletes our virtual servers and returns their keys; to be called after :meth:`read`.

        Raises: KernelError.
        """
        self._draining = set()
        self._ipvs.apply([Step("delete", server) for server in self._present.values()])
        deleted, self._present = frozenset(self._present), {}
        return deleted

    def draining_addresses(self) -> frozenset[str]:
        """The addresses of virtual servers with real servers that only keep existing connections."""
        return frozenset(key.address for key in self._draining)

    def expected(self, contents: NodeContents) -> Iterator[VirtualServer]:
        """The virtual servers that the kernel should hold, the draining ones included, by key."""
        servers = self._desired(contents) | {key: self._present[key] for key in self._draining}
        return (servers[key] for key in sorted(servers))

    def set_timeouts(self, settings: IpvsSettings) -> None:
        """Sets the configured timeouts, if they differ from those of the kernel.

        Raises: KernelError.
        """
        configured = Timeouts(settings.tcp_timeout, settings.tcp_fin_timeout, settings.udp_timeout)
        if any(configured):
            current = self._ipvs.timeouts()
            if any(new and new != old for new, old in zip(configured, current, strict=True)):
                self._ipvs.set_timeouts(configured)

    def _desired(self, contents: NodeContents, keys: Iterable[Key] | None = None) -> dict[Key, VirtualServer]:
        """The virtual servers of the contents with these keys (None: all), without the keys of foreign ones."""
        servers = contents.servers(keys)
        return {key: server for key, server in servers.items() if key not in self.foreign}

    def _record(self, before: Mapping[Key, VirtualServer], steps: Sequence[Step]) -> None:
        """Records what the kernel holds after the steps."""
        now = ipvs_changes.after(before, steps)
        for key in before.keys() - now.keys():
            del self._present[key]
        self._present.update(now)


def _serves(contents: NodeContents, key: Key, destination: Destination) -> bool:
    """Whether the endpoint of a real server serves."""
    return contents.serves(key, endpoint_text(*destination.endpoint))


def forget_flows(netns_path: NetnsPath, keys: Iterable[Key]) -> None:
    """Deletes the flows of removed virtual servers, so that their next packets are translated again.

    Otherwise packets of a UDP client that keeps its socket are lost, and a TCP client waits for a long time-out.

    Raises: KernelError.
    """
    removed = {(key.protocol.upper(), key.address, key.port) for key in keys}

    def stale(flow: Flow) -> bool:
        return not flow.redirected and (flow.protocol, flow.original.dst, flow.original.dport) in removed

    if removed:
        with Conntrack(netns_path) as conntrack:
            for protocol in sorted({protocol for protocol, _, _ in removed}):
                conntrack.forget(stale, protocol=protocol)
