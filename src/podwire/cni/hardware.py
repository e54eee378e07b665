"""Follows the hardware addresses of pods' interfaces, which a chained plugin or a program in the pod may change.

Both ends of a pod's device have permanent neighbour entries. When the pod's hardware address changes, the kernel
deletes the entries in the pod, and those on the node are wrong: no packet passes. ``tuning`` with ``mac`` does this
right after ADD. The kernel notifies the node of the change (:mod:`podwire.kernel.peer_watch`).

Guarantees: 1. within :data:`FOLLOW_S` of a change both ends have the right entries, and the ledger has the address;
2. at start, and after missed notifications, all pods are compared; 3. a change that is none costs no read of the pod's
namespace. A pod whose namespace the agent cannot open keeps the entries that it has.
"""

import asyncio
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from podwire.cni.attachments import Attachments
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.podhardware import PodHardware
from podwire.cni.wiring import WiringFacts, plan
from podwire.errors import CniError, KernelError
from podwire.kernel import pods
from podwire.kernel.peer_watch import PeerDevice
from podwire.observe.log import Log
from podwire.runtime.clock import Clock

FOLLOW_S = 0.01


class HardwareAddresses:
    """Keeps the neighbour entries of pods equal to their hardware addresses."""

    def __init__(self, attachments: Attachments, hardware: PodHardware, clock: Clock, log: Log) -> None:
        self._attachments = attachments
        self._hardware = hardware
        self._clock = clock
        self._log = log
        self._changed = asyncio.Event()
        self._indexes: set[int] = {0}
        """The interface indexes that changed; 0: any may have."""

    async def run(self) -> None:
        """Follows changes until cancelled."""
        try:
            watch = self._hardware.watch()
        except KernelError as failure:
            self._log.warning("cannot follow hardware addresses that other plugins change", problem=failure)
            return
        try:
            watch.attach(self._observe)
            self._changed.set()
            while True:
                await self._changed.wait()
                self._changed.clear()
                indexes, self._indexes = self._indexes, set()
                self.follow(self._attachments_of(indexes))
                await self._clock.sleep(FOLLOW_S)
        finally:
            watch.close()

    def follow(self, attachments: Iterable[Attachment]) -> None:
        """Reads the hardware addresses of pods, and corrects the entries of those that changed."""
        for attachment in attachments:
            try:
                mac = self._hardware.mac(attachment)
                if mac in ("", attachment.mac):
                    continue
                changed = replace(attachment, mac=mac)
                self._attachments.leases.update(changed)
                self._hardware.set_neighbours(changed, plan(changed, WiringFacts()))
            except (KernelError, CniError) as failure:
                self._log.warning("cannot follow a pod's hardware address", pod=attachment.pod, problem=failure)
                continue
            self._log.info("a pod's hardware address changed", pod=attachment.pod, mac=mac)

    def _observe(self, devices: Sequence[PeerDevice]) -> None:
        known = {attachment.mac for attachment in self._attachments.by_key.values()}
        indexes = {device.number for device in devices if not device.number or device.mac not in known}
        if indexes:
            self._indexes |= indexes
            self._changed.set()

    def _attachments_of(self, indexes: set[int]) -> list[Attachment]:
        attachments = list(self._attachments.by_key.values())
        if 0 in indexes:
            return attachments
        return [x for x in attachments if not indexes.isdisjoint(pods.derived_indexes(x.host_link))]
