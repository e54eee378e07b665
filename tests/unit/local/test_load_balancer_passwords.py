"""Passwords of BGPPeers from Secrets at the real API server: changes, refusals as Events, last good forms."""

import asyncio
import base64

from tests.fakes.control_plane import StartControlPlane
from tests.unit.local.balancer_agents import bgp_agent
from tests.unit.local.test_load_balancer_addresses import CONFIG, prepare

from podwire.kube.resources import SECRETS, Json

TYPE = "kubernetes.io/basic-auth"


def secret(name: str, password: str, kind: str = TYPE) -> Json:
    data = {"password": base64.b64encode(password.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "data": data}


def test_a_password_follows_its_secret(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=1, config=CONFIG) as p:
            await prepare(p)
            async with bgp_agent(p) as agent:
                await agent.put_peer("open", peerAddress="10.89.0.2")
                await agent.put_peer("tor", passwordSecret={"name": "tor"})
                await agent.until_refused("tor", "spec.passwordSecret: there is no Secret kube-system/tor")
                await agent.until(agent.sessions)
                assert set(agent.sessions()) == {"BGPPeer open"}, "a session never works without its password"
                await p.client.create(SECRETS, secret("tor", "first"), "kube-system")
                await agent.until(lambda: "BGPPeer tor" in agent.sessions())
                assert agent.sessions()["BGPPeer tor"].password == "first"
                before = agent.sessions()["BGPPeer open"]
                await p.client.patch(SECRETS, "tor", {"data": secret("tor", "second")["data"]}, "kube-system")
                await agent.until(lambda: agent.sessions()["BGPPeer tor"].password == "second")
                assert agent.sessions()["BGPPeer open"] == before, "other sessions stay as they are"
                await p.client.delete(SECRETS, "tor", "kube-system")
                await agent.until_refused("tor", "no Secret kube-system/tor; its last good form stays in force")
                assert agent.sessions()["BGPPeer tor"].password == "second"

    asyncio.run(run())


def test_a_secret_of_another_type_is_refused(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=1, config=CONFIG) as p:
            await prepare(p)
            await p.client.create(SECRETS, secret("tor", "hidden", "Opaque"), "kube-system")
            async with bgp_agent(p) as agent:
                await agent.put_peer("tor", passwordSecret={"name": "tor"})
                await agent.until_refused("tor", f"Secret kube-system/tor has the type Opaque: expected {TYPE}")
                assert not agent.sessions()

    asyncio.run(run())
