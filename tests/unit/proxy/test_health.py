"""The answers about the proxy's health, byte for byte where a load balancer reads them."""

import asyncio
import json

import pytest
from tests.fakes.clock import FakeClock

from podwire.http.message import Response
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeSpec, Taint
from podwire.proxy.health import AUTOSCALER_TAINT, PATIENCE_S, Pulse, eligible, service_answer

NODE = Node(metadata=ObjectMeta(name="n1"))
GOING = Node(metadata=ObjectMeta(name="n1", deletion_timestamp="2026-01-01T00:00:00Z"))
TAINTED = Node(metadata=ObjectMeta(name="n1"), spec=NodeSpec(taints=(Taint(AUTOSCALER_TAINT, "NoSchedule"),)))


def parts(answer: Response) -> tuple[int, dict[str, str], dict[str, object]]:
    headers = {"content-type": answer.content_type, **dict(answer.headers)}
    return answer.status, headers, json.loads(answer.body)


def test_a_change_that_waits_makes_unhealthy_until_it_is_programmed() -> None:
    clock = FakeClock()
    pulse = Pulse(clock)

    async def scenario() -> None:
        assert pulse.healthy
        pulse.committed()
        await clock.advance(600)
        assert parts(pulse.livez())[2]["lastUpdated"] == "2026-01-01T00:10:00.000000Z"
        pulse.queued()
        await clock.advance(PATIENCE_S - 1)
        pulse.queued()
        assert pulse.healthy
        await clock.advance(1)
        status, headers, body = parts(pulse.livez())
        assert (status, headers["content-type"]) == (503, "application/json")
        family = {"lastUpdated": "2026-01-01T00:00:00.000000Z", "healthy": False}
        assert body == {
            "lastUpdated": "2026-01-01T00:00:00.000000Z",
            "currentTime": "2026-01-01T00:11:00.000000Z",
            "healthy": False,
            "status": {"IPv4": family, "IPv6": family},
        }
        assert parts(pulse.healthz(NODE))[0] == 503
        pulse.committed()
        assert pulse.healthy

    asyncio.run(scenario())


@pytest.mark.parametrize(("node", "status"), [(NODE, 200), (GOING, 503), (TAINTED, 503), (None, 503)])
def test_node_being_deleted_is_unhealthy_but_alive(node: Node | None, status: int) -> None:
    pulse = Pulse(FakeClock())
    code, _, body = parts(pulse.healthz(node))
    assert (code, body["nodeEligible"], body["healthy"]) == (status, status == 200, status == 200)
    assert eligible(node) == (status == 200)
    code, _, body = parts(pulse.livez())
    assert code == 200
    assert "nodeEligible" not in body
    assert pulse.answered == {("healthz", status): 1, ("livez", 200): 1}


def test_a_health_check_node_port_answers_as_kube_proxy_does() -> None:
    answer = service_answer("t/x", 1, healthy=True)
    assert answer.body == (
        b'{\n\t"service": {\n\t\t"namespace": "t",\n\t\t"name": "x"\n\t},\n'
        b'\t"localEndpoints": 1,\n\t"serviceProxyHealthy": true\n}'
    )
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert answer.headers == (("X-Content-Type-Options", "nosniff"), ("X-Load-Balancing-Endpoint-Weight", "1"))


@pytest.mark.parametrize(("endpoints", "healthy", "status"), [(0, True, 503), (2, False, 503), (2, True, 200)])
def test_a_node_without_endpoint_or_proxy_is_skipped(endpoints: int, healthy: bool, status: int) -> None:
    code, headers, body = parts(service_answer("t/x", endpoints, healthy=healthy))
    assert code == status
    assert headers["X-Load-Balancing-Endpoint-Weight"] == str(endpoints)
    assert (body["localEndpoints"], body["serviceProxyHealthy"]) == (endpoints, healthy)
