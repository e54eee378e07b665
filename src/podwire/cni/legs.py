"""Legs in the kernel: the second interfaces of pods, on a device of the node.

A leg is a device of kind macvlan or ipvlan (:mod:`podwire.kernel.pods`) that the backends of these names plan. A device
of another program with the same name stays.
"""

import contextlib
from collections.abc import Iterable

from podwire.cni.ipam.ledger import Attachment
from podwire.cni.wiring import LEG, OWNER, Wiring, WiringFacts, is_leg, plan
from podwire.errors import KernelNotFound
from podwire.kernel import netns, network, pods, sysctl
from podwire.kernel.link_codec import ReadLink
from podwire.kernel.netlink import Netlink
from podwire.state.link import Link


class PodLegs:
    """Makes and deletes the legs of pods; ``netlink`` is a socket in the node's network namespace."""

    def __init__(self, netlink: Netlink) -> None:
        self._netlink = netlink
        self._used = False
        """Whether pods may have legs: DEL need not look into the namespaces of pods that have none."""

    def hold(self, planned: Wiring, netns_path: str) -> None:
        """Makes a pod have its leg, and all the state that goes with it.

        Raises: KernelNotFound when the uplink or the pod is gone; KernelError.
        """
        assert planned.leg is not None, "the caller checks it"
        self._used = True
        uplink = network.read_link(self._netlink, planned.leg.device).index
        with Netlink(netns_path) as pod:
            if not _is_current(pods.read_leg(pod, planned.leg.name), planned.leg, uplink, pod):
                pods.make_leg(self._netlink, netns_path, planned.leg)
            for value in planned.pod.sysctls:
                sysctl.write(value.path, value.value, netns_path)
            network.apply(pod, planned.pod, OWNER).check()

    def delete_outdated(self, attachments: Iterable[Attachment], node: WiringFacts) -> None:
        """Deletes legs of another kind or on another uplink than planned, before any new one is made.

        The kernel refuses devices of kind macvlan and ipvlan on one uplink.

        Raises: KernelNotFound when the uplink does not exist; KernelError.
        """
        for attachment in attachments:
            planned = plan(attachment, node).leg
            assert planned is not None, "the caller checks it"
            uplink = network.read_link(self._netlink, planned.device).index
            with contextlib.suppress(KernelNotFound), Netlink(attachment.netns) as pod:
                _is_current(pods.read_leg(pod, planned.name), planned, uplink, pod)

    def delete(self, pod: Netlink, attachment: Attachment) -> None:
        """Deletes the leg of a pod; another device of the same name stays."""
        leg = pods.read_leg(pod, LEG)
        if leg is not None and is_leg(leg.link, attachment):
            pods.delete_leg(pod, leg)

    def delete_all(self, attachments: Iterable[Attachment]) -> None:
        """Deletes the legs of pods whose namespace may be used again; the kernel takes some 20 ms for each."""
        for attachment in attachments if self._used else ():
            with contextlib.suppress(KernelNotFound):
                if netns.exists(attachment.netns):
                    with Netlink(attachment.netns) as pod:
                        self.delete(pod, attachment)

    def delete_rules(self, attachments: Iterable[Attachment]) -> None:
        """Deletes the rules of interfaces beside others, in namespaces that stay."""
        for attachment in attachments:
            if not attachment.beside:
                continue  # The first interface of a pod has no rules.
            rules = plan(attachment, WiringFacts()).pod.rules
            if rules and netns.exists(attachment.netns):
                with contextlib.suppress(KernelNotFound), Netlink(attachment.netns) as pod:
                    pods.delete_rules(pod, rules)


def _is_current(leg: ReadLink | None, planned: Link, uplink: int, pod: Netlink) -> bool:
    """Whether a pod has its leg as planned; deletes one that differs in its kind, its mode or its uplink."""
    if leg is None:
        return False
    if leg.lower == uplink and (leg.link.kind, leg.link.mode) == (planned.kind, planned.mode):
        return True
    pods.delete_leg(pod, leg)
    return False
