"""The comparison of the sysctls of pods that an agent makes each second, for many pods of one node.

The pods are wired as by the agent, and nothing changes their sysctls. CPU is that of this process.
"""

import time
from pathlib import Path

from bench.table import Row

from podwire.cni import wiring
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.podsysctls import PodSysctls
from podwire.cni.protocol import AttachmentKey
from podwire.cni.wiring import WiringFacts
from podwire.kernel import netns, pods
from podwire.kernel.netlink import Netlink

COUNTS = (100, 250)
AIM_MS = 3.0
"""0.3 % of one processor."""
_TURNS, _CALLS = 5, 100


def attachment(folder: Path, number: int) -> Attachment:
    key = AttachmentKey("podwire", f"c-{number}", "eth0")
    return Attachment(
        key=key,
        addresses=(f"10.244.{number // 250}.{number % 250 + 2}",),
        host_link=wiring.host_link_name(f"pod{number}", key),
        mac=wiring.pod_mac(key),
        netns=str(folder / f"pod-{number}"),
    )


def rows(folder: Path, quick: bool) -> list[Row]:
    """A row for each number of pods."""
    place, held, facts = folder / "sysctls", dict[AttachmentKey, Attachment](), WiringFacts()
    netns.create(place)
    result = []
    try:
        with Netlink(place) as host:
            for count in (16,) if quick else COUNTS:
                for number in range(len(held), count):
                    pod = attachment(folder, number)
                    netns.create(pod.netns)
                    held[pod.key] = pod
                    planned = wiring.plan(pod, facts)
                    pods.wire(host, pod.netns, planned.host, planned.first)
                used = tuple(measure(PodSysctls(place), held, facts))
                result.append(Row(f"{count} pods: sysctls compared each second, CPU", "ms", used, aim=AIM_MS))
    finally:
        for pod in held.values():
            netns.delete(pod.netns)
        netns.delete(place)
    return result


def measure(sysctls: PodSysctls, held: dict[AttachmentKey, Attachment], facts: WiringFacts) -> list[float]:
    """Milliseconds of a comparison."""
    times = []
    sysctls.restore(held, facts)
    for _ in range(_TURNS):
        began = time.process_time()
        for _ in range(_CALLS):
            if sysctls.restore(held, facts).values:
                raise SystemExit("a sysctl changed")
        times.append((time.process_time() - began) * 1e3 / _CALLS)
    sysctls.close()
    return times
