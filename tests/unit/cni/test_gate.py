"""The gate that lets ADD pass when a pod's policies can be put in force."""

import asyncio

from podwire.cni import spec
from podwire.cni.gate import EnforcementGate
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.protocol import AttachmentKey, CniRequest

KEY = AttachmentKey("podwire", "0123456789ab", "eth0")


class Admission:
    """Admits pods when ``ready`` is set."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.asked: list[tuple[str, str]] = []

    def admits(self, _pod: str, _uid: str = "") -> bool:
        return self.ready.is_set()

    async def known(self, pod: str, uid: str = "") -> None:
        self.asked.append((pod, uid))
        await self.ready.wait()

    def waits_for(self) -> tuple[str, str]:
        return "the pod is not known yet", "check that the API server answers"


def request(command: str, pod: str = "web") -> CniRequest:
    conf = spec.NetConf(name="podwire", cni_version="1.0.0")
    return CniRequest(command=command, conf=conf, key=KEY, netns="/n", namespace="shop", pod=pod, uid="u1")


def test_only_adding_a_pod_waits_for_its_policies() -> None:
    async def scenario() -> None:
        admission = Admission()
        gate = EnforcementGate(admission, lambda _: None, lambda _: None)
        assert gate.before(request("DEL")) is None
        assert gate.before(request("ADD", pod="")) is None
        waiting = gate.before(request("ADD"))
        assert waiting is not None
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0.01)
        assert (task.done(), admission.asked) == (False, [("shop/web", "u1")])
        admission.ready.set()
        await asyncio.wait_for(task, 5)
        assert gate.before(request("ADD")) is None, "the agent handles the request without a task"

    asyncio.run(scenario())


def test_detached_pod_is_forgotten_by_its_device() -> None:
    attached: list[Attachment] = []
    detached: list[str] = []
    gate = EnforcementGate(Admission(), attached.append, detached.append)
    pod = Attachment(
        key=KEY,
        addresses=("10.0.0.7",),
        host_link="web-1",
        mac="02:00:00:00:00:07",
        netns="/n",
        namespace="shop",
        pod="web",
    )
    gate.attach(pod)
    gate.detach(pod)
    assert (attached, detached) == ([pod], ["web-1"])
