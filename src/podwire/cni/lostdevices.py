"""The devices of running pods that another program deleted or renamed.

A deleted device is made again, and so is the pod's end, which the kernel deleted with it: with the same names,
addresses and hardware addresses, so that the pod's connections go on. That takes as long as ADD.
"""

import errno
from collections.abc import Callable, Iterable

from podwire.cni.bridgedevice import BridgeDevice
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.legs import PodLegs
from podwire.cni.wiring import Wiring, WiringFacts, alias_of, bridge_of, plan
from podwire.errors import KernelError
from podwire.kernel import link_codec, netns, network, pods
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.uapi import IFF_UP, RTM_SETLINK
from podwire.state.link import Link


class LostDevices:
    """Restores devices; ``netlink`` is a socket in the node's namespace, ``wire`` connects a pod as ADD does."""

    def __init__(
        self, netlink: Netlink, bridge: BridgeDevice, legs: PodLegs, wire: Callable[[Wiring, str], bool]
    ) -> None:
        self._netlink = netlink
        self._bridge = bridge
        self._legs = legs
        self._wire = wire

    def restore(self, attachments: Iterable[Attachment], node: WiringFacts) -> list[str]:
        """Makes devices that are gone, and gives renamed ones their names; returns the failures as text.

        The device of a pod whose namespace does not exist any more stays away.
        """
        devices = [link for link in network.read_links(self._netlink) if link.group != network.DELETE_GROUP]
        by_alias = {link.alias: link for link in devices if link.kind == "veth"}
        failures = []
        for attachment in attachments:
            renamed = by_alias.get(alias_of(attachment))
            try:
                if renamed is not None:
                    self._rename(renamed, attachment.host_link)
                elif attachment.netns and netns.is_network(attachment.netns):
                    self._make(attachment, node)
            except KernelError as failure:
                failures.append(f"{alias_of(attachment)}: {failure}")
        return failures

    def _rename(self, link: Link, name: str) -> None:
        body = link_codec.encode_rename(link.index, name)
        try:
            self._netlink.request(Message(RTM_SETLINK, 0, body, "rename", link))
        except KernelError as failure:
            if failure.errno != errno.EBUSY:
                raise
            down = Message(RTM_SETLINK, 0, link_codec.header(link.index, 0, IFF_UP), "set down", link)  # Linux < 6.2
            for refused in self._netlink.batch([down, Message(RTM_SETLINK, 0, body, "rename", link)]).values():
                raise refused from failure

    def _make(self, attachment: Attachment, node: WiringFacts) -> None:
        """Wires a pod, after deleting the objects that did not go with the device: the wiring adds them."""
        if (bridge := bridge_of([attachment], node)) is not None:
            self._bridge.hold(bridge)
        planned = plan(attachment, node)
        pods.delete_rules(self._netlink, planned.host.rules)
        self._legs.delete_rules([attachment])
        if attachment.bridge:
            pods.delete_paths(self._netlink, [planned.host])
        self._wire(planned, attachment.netns)
