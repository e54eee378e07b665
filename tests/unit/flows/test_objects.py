"""The objects of flows: what policies allow, where pods run, how they run podwire."""

from podwire.flows import objects
from podwire.flows.messages import DENIED_PORT
from podwire.flows.objects import FlowProgram

PROGRAM = FlowProgram(image="podwire:1", environment={"PYTHONPATH": "/b"}, pull_secrets=("registry",))


def test_the_policy_and_the_service_leave_out_the_denied_port() -> None:
    (rule,) = objects.policy()["spec"]["ingress"]
    ports = [(port["protocol"], port["port"]) for port in rule["ports"]]
    assert ports == [("TCP", 7007), ("UDP", 7007), ("TCP", 7008)]
    assert DENIED_PORT not in [port["port"] for port in objects.service(None)["spec"]["ports"]]


def test_pods_run_the_program_on_their_node() -> None:
    sender = objects.sender_pod(PROGRAM, "node-1", ["--interval-ms", "20", "10.0.0.1"])
    (container,) = sender["spec"]["containers"]
    assert container["command"] == ["podwire"]
    assert container["args"] == ["flows", "send", "--interval-ms", "20", "10.0.0.1"]
    assert container["env"] == [{"name": "PYTHONPATH", "value": "/b"}]
    assert (sender["spec"]["nodeName"], sender["metadata"]["name"]) == ("node-1", "sender-node-1")
    assert sender["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_only_recorders_share_the_network_of_their_node() -> None:
    recorder, server = objects.recorder_pod(PROGRAM, "n")["spec"], objects.server_pod(PROGRAM, "n")["spec"]
    assert recorder["hostNetwork"] and "hostNetwork" not in server
    assert recorder["containers"][0]["securityContext"]["capabilities"]["add"] == ["NET_ADMIN"]
    assert server["containers"][0]["readinessProbe"]["tcpSocket"]["port"] == 7007


def test_an_ingress_leads_to_the_http_port() -> None:
    (rule,) = objects.ingress("")["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "podwire-flows", "port": {"number": 7008}}


def test_a_load_balancer_is_used_only_on_request() -> None:
    assert objects.service(None)["spec"]["type"] == "NodePort"
    default, own = objects.service("")["spec"], objects.service("example.com/own")["spec"]
    assert (default["type"], own["type"]) == ("LoadBalancer", "LoadBalancer")
    assert "loadBalancerClass" not in default and own["loadBalancerClass"] == "example.com/own"
    assert "ingressClassName" not in objects.ingress("")["spec"]
    assert objects.ingress("podwire")["spec"]["ingressClassName"] == "podwire"
