"""Keeps the kernel and the ledger of one node equal: after a restart, when pods vanish, and after foreign changes."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from podwire.cni import sourceguard, wiring
from podwire.cni.attachments import Attachments
from podwire.cni.lostdevices import LostDevices
from podwire.cni.podsysctls import PodSysctls, Restored
from podwire.cni.protocol import AttachmentKey
from podwire.cni.wiring import WiringFacts
from podwire.errors import KernelError
from podwire.observe.log import Log
from podwire.state.network import NetworkState

_SWEEPS_WITHOUT_DEVICE = 2
"""An attachment is removed after this many consecutive sweeps, a minute apart, that do not find its device."""


class AttachmentRepair:
    """Repairs the attachments of one node; ``node`` returns the current facts that the wiring depends on."""

    def __init__(
        self, attachments: Attachments, node: Callable[[], WiringFacts], lost: LostDevices, sysctls: PodSysctls
    ) -> None:
        self._attachments = attachments
        self._node = node
        self._lost = lost
        self._sysctls = sysctls
        self._log = Log("cni")
        self._sweeps_without_device: dict[AttachmentKey, int] = {}
        self._last_node = node()

    def recover(self, network: str) -> None:
        """At start: finishes the requests that a killed agent had begun, and restores the tables of pods.

        Wired pods that are missing in the ledger are taken over under the network's name.
        """
        have = self._attachments.plumber.read()
        lost_attachments = [
            attachment for attachment in self._attachments.by_key.values() if not wiring.is_complete(have, attachment)
        ]
        self._attachments.remove_vanished(lost_attachments, "its device is gone or was never finished")
        missing = wiring.missing_in_ledger(have, self._attachments.by_key, network)
        ports = self._attachments.plumber.ports.read() if missing else {}
        for rebuilt in missing:
            mappings = dict.fromkeys(mapping for ip in rebuilt.addresses for mapping in ports.get(ip, ()))
            attachment = replace(rebuilt, ports=tuple(mappings))
            self._attachments.leases.adopt(attachment)
            self._log.warning(
                "restored an attachment from the kernel: the address ledger does not have it",
                key=str(attachment.key),
                addresses=",".join(attachment.addresses),
            )
        self._remove_strays(have)
        self._attachments.close_loopback()
        self._attachments.hold_ports()
        self._attachments.hold_guard()
        self._attachments.hold_sources()

    def sweep(self) -> None:
        """To be called every minute: releases attachments whose device has been missing for two calls.

        The tables of pods are restored too.
        """
        have = self._attachments.plumber.read()
        gone = {key for key, attachment in self._attachments.by_key.items() if have.link(attachment.host_link) is None}
        self._sweeps_without_device = {key: self._sweeps_without_device.get(key, 0) + 1 for key in gone}
        lost_attachments = [
            self._attachments.by_key[key]
            for key, count in self._sweeps_without_device.items()
            if count >= _SWEEPS_WITHOUT_DEVICE
        ]
        self._attachments.remove_vanished(lost_attachments, "its device has been gone for a minute")
        self._remove_strays(have)
        self.heal_ports()
        self.heal_guard()
        self.heal_sources()

    def heal_ports(self) -> None:
        """Restores the hostPort table when a pod has a hostPort.

        Raises: KernelError.
        """
        if any(attachment.ports for attachment in self._attachments.by_key.values()):
            self._attachments.close_loopback()
            self._attachments.hold_ports()

    def heal_guard(self) -> None:
        """Restores the source guard of the bridge when a pod is on the bridge.

        Raises: KernelError.
        """
        if any(attachment.bridge for attachment in self._attachments.by_key.values()):
            self._attachments.hold_guard()

    def heal_sources(self) -> None:
        """Restores the source guard of pods with own devices when a pod needs it.

        Raises: KernelError.
        """
        if any(map(sourceguard.is_guarded, self._attachments.by_key.values())):
            self._attachments.hold_sources()

    def hold_bridge(self) -> None:
        """Makes the bridge of pods when new or running pods need it; a failure is logged, and healing tries again."""
        bridge = wiring.bridge_of(self._attachments.by_key.values(), self._node())
        if bridge is None:
            return
        try:
            self._attachments.plumber.bridge.hold(bridge)
        except KernelError as failure:
            self._log.warning("cannot make the bridge of pods; trying again", problem=failure)

    def node_changed(self) -> Sequence[str]:
        """To be called when the node's MTU or the leg of pods may have changed: running pods get the new ones.

        Returns the failures of single pods as text.

        Raises: KernelNotFound when the uplink of the leg does not exist; the next call tries again.
        """
        node = self._node()
        previous = self._last_node
        changed = (node.mtu, node.route_mtus, node.leg) != (previous.mtu, previous.route_mtus, previous.leg)
        failures = self._attachments.plumber.rewire(self._attachments.by_key.values(), node) if changed else ()
        self._last_node = node
        return failures

    def heal(self, *, sysctls: bool = True) -> Sequence[str]:
        """Restores the node's side of running pods after changes by other programs; returns the failures as text.

        A device that is gone is made again with the pod's end while the pod's namespace exists; later ``sweep``
        releases the attachment.
        """
        plumber, held = self._attachments.plumber, self._attachments.by_key.values()
        attachments, failures = plumber.present(held), list[str]()
        if len(attachments) < len(held):
            present = {attachment.key for attachment in attachments}
            failures = self._lost.restore((x for x in held if x.key not in present), self._node())
            attachments = plumber.present(held)
        state = wiring.merged(attachments, self._node())
        if not sysctls:  # A bridge that has to be made again needs its own.
            own = wiring.bridge_of(attachments, self._node())
            state = replace(state, sysctls=own.sysctls if own is not None else ())
        return [*failures, *plumber.hold(state)]

    def restore_sysctls(self) -> Restored:
        """Restores sysctls of running pods whose changes the kernel does not report, and lost second interfaces."""
        plumber, node = self._attachments.plumber, self._node()
        restored = self._sysctls.restore(self._attachments.by_key, node)
        if not restored.legless or node.leg is None:
            return restored
        try:
            failures = plumber.rewire(restored.legless, node)
        except KernelError as failure:
            failures = [str(failure)]
        return restored._replace(failures=(*restored.failures, *failures))

    def has_address(self, address: str) -> bool:
        """Whether a running pod has an address."""
        return any(address in attachment.addresses for attachment in self._attachments.by_key.values())

    def has_bridge(self, index: int) -> bool:
        """Whether running pods are ports of the bridge with an interface index."""
        bridged = any(attachment.bridge for attachment in self._attachments.by_key.values())
        return bridged and self._attachments.plumber.bridge.has_index(index)

    def lacks_rules(self) -> Sequence[str]:
        """The rules of running pods that the node's namespace does not hold, as text.

        Raises: KernelError.
        """
        attachments = self._attachments.plumber.present(self._attachments.by_key.values())
        held = {rule.key for rule in self._attachments.plumber.read().rules}
        return [str(rule) for rule in wiring.merged(attachments, self._node()).rules if rule.key not in held]

    def _remove_strays(self, have: NetworkState) -> None:
        known = {(key.container, key.ifname) for key in self._attachments.by_key}
        strays = [link.name for link in have.links if (o := wiring.owner_of(link)) is not None and o not in known]
        if strays:
            self._attachments.plumber.remove(strays)
            self._log.warning("removed devices that belong to no attached pod", links=",".join(strays))
