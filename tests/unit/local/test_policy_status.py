"""What agents tell of policies comes to stand on the policies: the real API server and controller, agents' reports."""

import asyncio
import json
import re
from typing import Any

from tests.fakes.control_plane import ControlPlane, StartControlPlane

from podwire.kube.client import Client
from podwire.kube.resources import CONFIGMAPS, EVENTS, NETWORKPOLICIES, NODES
from podwire.model.changed import Changed
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.policy.nodereport import PolicyReport
from podwire.policy.status.report import NAMESPACE, name_of, parse
from podwire.runtime.tasks import TaskSet

JsonObject = dict[str, Any]
DENY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}


class Agents:
    """The reports of the nodes' agents; a node has in force what it was told to."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.metas: dict[tuple[str, str, str], ObjectMeta] = {}
        self.reports: dict[str, PolicyReport] = {}
        self.tasks = TaskSet(print)

    async def start(self) -> None:
        for node in (await self.client.list(NODES)).items:
            self.begin(node)

    def begin(self, node: Node) -> None:
        name = node.metadata.name
        result = Node(metadata=ObjectMeta(name=name, uid=node.metadata.uid))
        report = PolicyReport(self.client, name, lambda: result, lambda kind, key: self.metas.get((name, kind, key)))
        self.reports[name] = report
        report.committed({})
        self.tasks.start(name, report.run())

    async def commit(self, *names: str) -> None:
        """These nodes have the policy in force as it is now."""
        policies = (await self.client.list(NETWORKPOLICIES, "default")).items
        for name in names:
            known = {("NetworkPolicy", f"default/{policy.metadata.name}"): policy.metadata for policy in policies}
            before = {key[1:] for key in self.metas if key[0] == name}
            self.metas = {key: meta for key, meta in self.metas.items() if key[0] != name}
            self.metas |= {(name, *key): meta for key, meta in known.items()}
            heard = self.client.clock.monotonic() - 0.004
            self.reports[name].committed({Changed(kind, key): heard for kind, key in known.keys() | before})


async def annotation_in_force(p: ControlPlane, expected: str, name: str = "deny") -> JsonObject:
    """The annotation, when it says that it is in force on so many nodes."""

    async def probe() -> JsonObject | None:
        policy = await p.client.get(NETWORKPOLICIES, name, "default")
        text = policy["metadata"].get("annotations", {}).get("podwire.io/enforced", "{}")
        result = json.loads(text)
        return (
            result
            if result.get("nodes") == expected and result["generation"] == policy["metadata"]["generation"]
            else None
        )

    return await p.until(probe)


async def events(p: ControlPlane) -> list[tuple[str, str]]:
    result = (await p.client.list(EVENTS, "default")).items
    return [(e["reason"], e["message"]) for e in result if e["involvedObject"]["kind"] == "NetworkPolicy"]


def test_policy_reports_the_number_of_enforcing_nodes(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane() as p:
            agents = Agents(p.client)
            await agents.start()
            await p.client.create(NETWORKPOLICIES, DENY, "default")
            await agents.commit("node-1", "node-2", "node-3")
            first = await annotation_in_force(p, "3/3")
            assert re.fullmatch(r"[1-9][\d.]*m?s", first["took"]) and first["since"].endswith("Z")

            async def told() -> list[tuple[str, str]]:
                return [event for event in await events(p) if event[0] == "Enforced"]

            text = f"In force on 3 of 3 nodes, {first['took']} after the nodes received the change"
            assert await p.until(told) == [("Enforced", text)]

            await p.client.patch(NETWORKPOLICIES, "deny", {"spec": {"policyTypes": ["Egress"]}}, "default")
            await agents.commit("node-1", "node-2")
            agents.reports["node-3"].refused("nft: no memory")
            partly = await annotation_in_force(p, "2/3")
            assert partly["missing"] == ["node-3: nft: no memory"]
            assert "since" not in partly

            async def complained() -> list[tuple[str, str]]:
                return [event for event in await events(p) if event[0] == "PartlyEnforced"]

            text = "In force on 2 of 3 nodes; not on node-3: nft: no memory"
            assert await p.until(complained) == [("PartlyEnforced", text)]

            await agents.commit("node-3")
            again = await annotation_in_force(p, "3/3")
            assert again["generation"] == 2 and again["since"] > first["since"]

            wrong = {"metadata": {"annotations": {"podwire.io/enforced": "{}"}}}
            await p.client.patch(NETWORKPOLICIES, "deny", wrong, "default")
            assert await annotation_in_force(p, "3/3") == again, "what somebody else writes there does not stay"

            conditions = [{"type": "Ready", "status": "Unknown"}]
            await p.client.patch(NODES, "node-3", {"status": {"conditions": conditions}}, subresource="status")
            fewer = await annotation_in_force(p, "2/2")
            assert fewer["notReady"] == ["node-3"]
            assert fewer["since"] == again["since"], "a node that goes changes nothing of since when"
            await agents.tasks.close()

    asyncio.run(run())


def test_reports_are_small_and_outlive_their_agents(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane() as p:
            agents = Agents(p.client)
            for number in range(20):
                body = DENY | {"metadata": {"name": f"deny-{number}"}}
                await p.client.create(NETWORKPOLICIES, body, "default")
            await agents.start()
            await agents.commit("node-1", "node-2", "node-3")
            for number in range(20):
                await annotation_in_force(p, "3/3", f"deny-{number}")
            before = await p.client.get(CONFIGMAPS, name_of("node-1"), NAMESPACE)
            assert len(json.dumps(before["data"])) < 400
            await agents.tasks.close()

            second = Agents(p.client)
            second.metas = agents.metas
            await second.start()
            await second.commit("node-1", "node-2", "node-3")
            await asyncio.sleep(0.3)
            after = await p.client.get(CONFIGMAPS, name_of("node-1"), NAMESPACE)
            last = [parse(item["data"]).commits["NetworkPolicy"][-1] for item in (before, after)]
            assert last[0].digest == last[1].digest

            await p.client.delete(NODES, "node-3")
            assert (await annotation_in_force(p, "2/2", "deny-0"))["generation"] == 1

            async def gone() -> bool:
                result = await p.client.list(CONFIGMAPS, NAMESPACE, label_selector="podwire.io/report=policies")
                return len(result.items) == 2

            await p.until(gone)
            await second.tasks.close()

    asyncio.run(run())


def test_unknown_annotation_is_an_event(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane() as p:
            annotations = {"podwire.io/mode": "Audit"}
            body = DENY | {"metadata": {"name": "deny", "annotations": annotations}}
            await p.client.create(NETWORKPOLICIES, body, "default")

            async def told() -> list[tuple[str, str]]:
                return [event for event in await events(p) if event[0] == "AnnotationNotKnown"]

            (event,) = await p.until(told)
            assert event[1] == (
                "podwire.io/mode: unknown value 'Audit', expected one of audit, enforce; the policy is enforced"
            )

    asyncio.run(run())
