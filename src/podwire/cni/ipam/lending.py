"""podwire as the IPAM plugin of other plugins (``ipam.type: podwire-cni``): addresses without wiring.

ADD answers with one address of each family of the node's pod CIDRs, the first address of the CIDR as the gateway, and
the routes of the configuration's ``ipam`` section, as ``host-local`` does. The address is on disk before the answer.
DEL and GC free addresses; so does :meth:`AddressLending.sweep` when a pod's namespace has vanished.
"""

from collections.abc import Callable

from podwire.cni import requested, spec
from podwire.cni.ipam.leases import Leases
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.ipam.pool import Address, exhausted
from podwire.cni.protocol import AttachmentKey, CniRequest
from podwire.errors import CniError
from podwire.observe.log import Log

_SWEEPS = 2
"""An address is freed after this many consecutive sweeps that do not find the pod's namespace."""


class AddressLending:
    """Answers requests of other plugins for addresses."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._log = Log("ipam")
        self._vanished: dict[AttachmentKey, int] = {}

    def handle(self, request: CniRequest) -> bytes:
        """Handles a request and returns the text for its standard output.

        Raises: CniError.
        """
        verbs = {"ADD": self._add, "DEL": self._delete, "CHECK": self._check, "STATUS": self._status, "GC": self._gc}
        return verbs[request.command](request)

    def _add(self, request: CniRequest) -> bytes:
        held = self._leases.lent.get(request.key)
        if held is not None:
            raise CniError(spec.INVALID_CONFIG, f"{request.key} has addresses", ", ".join(held.addresses))
        first = not any(key.container == request.key.container for key in self._leases.held)
        addresses = self._leases.choose(requested.addresses(request, first=first))
        attachment = Attachment(
            key=request.key,
            addresses=tuple(map(str, addresses)),
            host_link="",
            mac="",
            netns=request.netns,
            namespace=request.namespace,
            pod=request.pod,
            uid=request.uid,
        )
        try:
            self._leases.hold(attachment)
        except CniError:
            self._leases.put_back(addresses)
            raise
        ips = tuple(self._ip(address) for address in addresses)
        result = spec.CniResult(ips=ips, routes=request.conf.ipam.routes, dns=request.conf.dns)
        return spec.render_result(result, request.conf.cni_version)

    def _ip(self, address: Address) -> spec.Ip:
        network = next(pool.network for pool in self._leases.pools if address in pool.network)
        return spec.Ip(address=f"{address}/{network.prefixlen}", gateway=str(network.network_address + 1))

    def _delete(self, request: CniRequest) -> bytes:
        held = self._leases.lent.get(request.key)
        if held is not None:
            self._leases.release([held])
        return b""

    def _check(self, request: CniRequest) -> bytes:
        if request.key not in self._leases.lent:
            raise CniError(spec.UNKNOWN_CONTAINER, f"{request.key} has no address")
        return b""

    def _status(self, _request: CniRequest) -> bytes:
        full = exhausted(self._leases.pools, self._leases.closed)
        if full or not self._leases.pools:
            reason = f"no free address in {', '.join(full)}" if full else "the node has no pod CIDR yet"
            raise CniError(spec.PLUGIN_NOT_AVAILABLE, reason)
        return b""

    def _gc(self, request: CniRequest) -> bytes:
        valid = request.conf.attachments_in_use
        if valid is not None and not request.conf.disable_gc:
            network = request.conf.name
            lent = self._leases.lent.items()
            self._leases.release([a for k, a in lent if k.network == network and (k.container, k.ifname) not in valid])
        return b""

    def forget(self, key: AttachmentKey) -> None:
        """Frees the addresses that were taken over for a container's interface, under any name of the network."""
        lent = self._leases.lent.items()
        self._leases.release([a for k, a in lent if (k.container, k.ifname) == (key.container, key.ifname)])

    def sweep(self, is_gone: Callable[[str], bool]) -> None:
        """Frees the addresses of pods whose namespace has been missing for two calls; called every minute."""
        gone = {key for key, item in self._leases.lent.items() if item.netns and is_gone(item.netns)}
        self._vanished = {key: self._vanished.get(key, 0) + 1 for key in gone}
        freed = [self._leases.lent[key] for key, count in self._vanished.items() if count >= _SWEEPS]
        self._leases.release(freed)
        for item in freed:
            self._log.warning("released the addresses of a pod that vanished without a DEL", key=str(item.key))
