"""When a pod may get its device."""

import asyncio
from typing import Any, cast

from tests.fakes.clock import FakeClock
from tests.fakes.collection import Collection

from podwire.model.meta import ObjectMeta
from podwire.model.pod import Pod
from podwire.policy.admission import LOCKED_S, PodAdmission
from podwire.policy.attached import AttachedPods


class Plane:
    """A data plane of which another process may hold the lock."""

    def __init__(self) -> None:
        self.held = False

    def locked(self) -> bool:
        return self.held


class Bench:
    def __init__(self) -> None:
        self.pods = Collection[Pod]()
        self.plane = Plane()
        self.loaded = asyncio.Event()
        self.clock = FakeClock()
        self.admission = PodAdmission(AttachedPods(self.pods, "n1"), cast(Any, self.plane), self.loaded, self.clock)

    def arrive(self, uid: str) -> None:
        self.pods.put("shop/web", Pod(metadata=ObjectMeta(name="web", namespace="shop", uid=uid)))
        self.admission.arrived("shop/web")


def test_pod_waits_for_the_load_and_for_its_own_object() -> None:
    async def scenario() -> None:
        bench = Bench()
        waiting = asyncio.ensure_future(bench.admission.known("shop/web", "new"))
        await asyncio.sleep(0)
        assert not bench.admission.admits("shop/web", "new")
        assert bench.admission.waits_for()[0] == "policies are not in force yet"
        bench.loaded.set()
        bench.arrive("old")
        await asyncio.sleep(0.01)
        assert (waiting.done(), bench.admission.waits_for()[0]) == (False, "the pod is not known yet")
        assert (bench.admission.admits("shop/web", "old"), bench.admission.admits("shop/web", "new")) == (True, False)
        bench.arrive("new")
        await asyncio.wait_for(waiting, 5)
        assert bench.admission.admits("shop/web", "new")
        bench.plane.held = True
        assert not bench.admission.admits("shop/web", "new")

    asyncio.run(scenario())


def test_pod_waits_for_the_lock_only_for_a_while() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.plane.held = True
        waiting = asyncio.ensure_future(bench.admission.unlocked())
        await bench.clock.advance(LOCKED_S / 2)
        assert bench.admission.waits_for() == (
            "policies wait for the xtables lock",
            "another process holds /run/xtables.lock",
        )
        assert not waiting.done()
        for _ in range(round(LOCKED_S)):
            await bench.clock.advance(1.0)
        await asyncio.wait_for(waiting, 5)

    asyncio.run(scenario())
