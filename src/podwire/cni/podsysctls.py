"""Restores sysctls of pods whose changes the kernel does not report.

These are sysctls of pods' devices, of the bridge of pods, and those that pods with a second interface have in their own
namespaces. The others are restored after a notification (:mod:`podwire.cni.healing`).
Cost of a comparison, each second: 2.3 us of CPU for each pod with two of these sysctls, 1 us for each further sysctl
(:mod:`podwire.kernel.sysctl_files`).
"""

from collections.abc import Mapping, Sequence
from operator import is_
from typing import NamedTuple

from podwire.cni import podbridge, ports, wiring
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.protocol import AttachmentKey
from podwire.cni.wiring import WiringFacts
from podwire.errors import KernelError, KernelNotFound
from podwire.kernel import sysctl
from podwire.kernel.netns import NetnsPath
from podwire.kernel.sysctl_files import SysctlFiles, is_reported
from podwire.state.route import Sysctl

_NODE = "node"
_FORWARDING6 = "net/ipv6/conf/all/forwarding"


class Restored(NamedTuple):
    """The sysctls that were restored, and the failures as text.

    ``legless`` are the pods whose second interface is gone: the kernel deletes it together with its uplink, and reports
    that in the pod's namespace alone.
    """

    values: tuple[Sysctl, ...] = ()
    failures: tuple[str, ...] = ()
    legless: tuple[Attachment, ...] = ()


class _PodSide(NamedTuple):
    """The name of the sysctls in a pod's own namespace."""

    key: AttachmentKey


class PodSysctls:
    """The sysctls of one node's pods in the kernel; ``netns_path`` is the node's namespace."""

    def __init__(self, netns_path: NetnsPath) -> None:
        self._netns_path = netns_path
        self._files = SysctlFiles()
        self._held: tuple[Attachment, ...] = ()
        self._node = WiringFacts()

    def close(self) -> None:
        """Closes the files; the sysctls stay."""
        self._files.close()

    def restore(self, attachments: Mapping[AttachmentKey, Attachment], node: WiringFacts) -> Restored:
        """Writes the sysctls of running pods that another program changed."""
        self._follow(tuple(attachments.values()), node)
        restored: list[Sysctl] = []
        failures: list[str] = []
        for netns_path, value in self._files.differing():
            try:
                sysctl.write(value.path, value.value, netns_path)
            except KernelNotFound:
                continue  # The pod is being deleted.
            except KernelError as failure:
                failures.append(str(failure))
            else:
                restored.append(value)
        legless = (name for name in self._files.incomplete() if isinstance(name, _PodSide))
        return Restored(tuple(restored), tuple(failures), tuple(attachments[name.key] for name in legless))

    def _follow(self, held: tuple[Attachment, ...], node: WiringFacts) -> None:
        """Opens the sysctls of new pods, and closes those of pods that are gone."""
        if node is self._node and len(held) == len(self._held) and all(map(is_, held, self._held)):
            return
        before = {attachment.key: attachment for attachment in self._held} if node.leg == self._node.leg else {}
        now = {attachment.key: attachment for attachment in held}
        for attachment in self._held:
            if now.get(attachment.key) is not attachment or attachment.key not in before:
                self._drop(attachment)
        for attachment in held:
            if before.get(attachment.key) is not attachment:
                self._keep(attachment, node)
        self._files.keep(_NODE, shared_sysctls(held, node), self._netns_path)
        self._held, self._node = held, node

    def _drop(self, attachment: Attachment) -> None:
        self._files.drop(attachment.key)
        self._files.drop(_PodSide(attachment.key))

    def _keep(self, attachment: Attachment, node: WiringFacts) -> None:
        planned = wiring.plan(attachment, node)
        own = tuple(filter(_is_unreported, planned.host.sysctls))
        if own and not attachment.bridge:
            self._files.keep(attachment.key, own, self._netns_path)
        if planned.pod.sysctls and attachment.netns:  # Nobody listens to notifications of the pod's namespace.
            self._files.keep(_PodSide(attachment.key), planned.pod.sysctls, attachment.netns)


def shared_sysctls(held: Sequence[Attachment], node: WiringFacts) -> tuple[Sysctl, ...]:
    """The sysctls of the node's namespace that all pods share: of the bridge, and forwarding of IPv6.

    Packets between the node's loopback network and the bridge pass only where a pod on the bridge needs them.
    """
    values: list[Sysctl] = []
    if (bridge := wiring.bridge_of(held, node)) is not None:
        values += filter(_is_unreported, bridge.sysctls)
        needed = any(ports.on_loopback(attachment.ports) for attachment in held if attachment.bridge)
        values.append(Sysctl(path=podbridge.loopback_path(), value=str(int(needed))))
    if any(":" in address for attachment in held for address in attachment.addresses):
        values.append(Sysctl(path=_FORWARDING6, value="1"))
    return tuple(values)


def _is_unreported(value: Sysctl) -> bool:
    return not is_reported(value.path)
