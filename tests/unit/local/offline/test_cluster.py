"""A cluster as manifests describe it."""

import asyncio
from pathlib import Path

import pytest

from podwire.errors import ConfigError, ConfigErrors
from podwire.local.manifests import parse_manifests
from podwire.local.offline.cluster import DescribedCluster, describe, describe_manifests
from podwire.model.service import Service
from podwire.why.question import TypedQuestion, resolve_question

WEB = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i, ports: [{name: http, containerPort: 8080}]}]}
"""
NODES = """
---
apiVersion: v1
kind: Node
metadata: {name: a, labels: {topology.kubernetes.io/zone: z1}}
status: {addresses: [{type: InternalIP, address: 192.168.7.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: b}
"""
BY_HAND = """
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: 10.96.0.77, ports: [{port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-1, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{port: 5432}]
endpoints: [{addresses: [10.0.0.5], nodeName: b, conditions: {ready: false}}]
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec: {nodeName: b, containers: [{name: c, image: i}]}
status: {podIP: 10.244.9.9, podIPs: [{ip: 10.244.9.9}], phase: Running}
"""

POLICIES = """
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: a}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from:
    - namespaceSelector: {matchLabels: {team: a}}
  egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: floor}
spec:
  {tier: Admin, priority: 7, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}
"""


def describe_text(text: str) -> DescribedCluster:
    return describe_manifests(parse_manifests(text, "x.yaml"))


def service(result: DescribedCluster, namespace: str, name: str) -> Service:
    item = asyncio.run(result.objects.service(namespace, name))
    assert item is not None
    return item


def test_objects_of_controllers_are_added() -> None:
    result = describe_text(WEB + NODES)
    web = service(result, "shop", "web")
    assert web.spec.cluster_ip.startswith("10.96.")
    assert 30000 <= web.spec.ports[0].node_port <= 32767
    (piece,) = asyncio.run(result.objects.slices(web))
    assert [(p.name, p.port) for p in piece.ports or ()] == [("http", 8080)]
    ends = piece.endpoints or ()
    assert [end.node_name for end in ends] == ["a", "b", "a"]
    assert len({end.addresses for end in ends}) == 3
    assert all(end.conditions.ready for end in ends)
    nodes = asyncio.run(result.objects.nodes())
    assert [node.internal_ips[0] for node in nodes] == ["192.168.7.1", "10.89.0.12"]
    assert ends[0].zone == "z1"


def test_facts_of_the_files_are_kept() -> None:
    result = describe_text(WEB + BY_HAND)
    db = service(result, "default", "db")
    assert db.spec.cluster_ip == "10.96.0.77"
    (piece,) = asyncio.run(result.objects.slices(db))
    assert [end.addresses for end in piece.endpoints or ()] == [("10.0.0.5",)]
    asked = asyncio.run(resolve_question(TypedQuestion(source="client", target="svc/db"), result.objects))
    assert (asked.source.address, asked.node.metadata.name) == ("10.244.9.9", "b")
    assert result.notes[0] == "the files have no Node; assumed nodes: b"


def test_a_daemonset_is_on_every_node() -> None:
    text = WEB.replace("kind: Deployment", "kind: DaemonSet").replace("  replicas: 3\n", "")
    pods = asyncio.run(describe_text(text + NODES).objects.pods("shop"))
    assert [pod.spec.node_name for pod in pods] == ["a", "b"]


def test_of_a_node_s_addresses_only_addresses_count() -> None:
    result = describe_text(
        WEB
        + NODES.replace("192.168.7.1", "FD00::1").replace(
            "addresses: [", "addresses: [{type: InternalIP, address: a}, "
        )
    )
    assert result.world.nodes[0].internal_ips == ("fd00::1",)


def test_assumptions_are_noted() -> None:
    assert describe_text(NODES).notes == ()
    assert any("3 pods" in note for note in describe_text(WEB + NODES).notes)
    assert describe_text(WEB).config("a").cluster_cidrs == ("10.244.0.0/16", "fd10:244::/32")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            WEB.replace("port: 80,", "port: eighty,"),
            r"x.yaml:5: spec.ports.port: Service shop/web: expected a number, found a text",
        ),
        (
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolcy\nmetadata: {name: x}\n",
            "no NetworkPolcy in networking",
        ),
        (WEB.replace("selector: {app: web}, ports", "selectors: {app: web}, ports"), r"x.yaml:5: spec.selectors"),
        (WEB.replace("port: 80,", "port: 80000,"), r"x.yaml:5: spec.ports\[0\].port"),
        (WEB.replace("type: NodePort", "type: Nodeport"), r"x.yaml:5: spec.type"),
        (WEB.replace("type: NodePort", "clusterIP: 10.1.2.3"), r"x.yaml:5: spec.clusterIPs"),
        (BY_HAND.replace("10.0.0.5", "here"), r"x.yaml:13: endpoints\[0\].addresses\[0\]"),
        (
            POLICIES.replace("cidr: 10", "cidr: x"),
            r"x.yaml:14: spec.egress\[0\].to\[0\].ipBlock.cidr: NetworkPolicy shop/db",
        ),
        (
            POLICIES.replace("namespaceSelector", "namespaceselector"),
            r"x.yaml:13: .*namespaceselector: .*no such field",
        ),
        (POLICIES.replace("priority: 7", "priority: high"), r"x.yaml:20: spec.priority: .*of type integer"),
        (POLICIES.replace("priority: 7, ", ""), r"x.yaml:19: spec.priority: .*Required value"),
        (POLICIES.replace("action: Deny", "action: Drop"), r"x.yaml:20: spec.ingress\[0\].action: .*Drop"),
        (POLICIES.replace("tier: Admin", "tier: Admin, tiers: x"), r"x.yaml:20: spec.tiers: .*no such field"),
        (BY_HAND.replace("10.244.9.9", "here"), r"Pod default/client: status.podIPs: 'here' is not an IP address"),
        (NODES.replace(", address: 192.168.7.1", ""), r"Node a: status.addresses\[0\]: .*`address`"),
        ("a: [", r"x.yaml:2: not YAML"),
        ("- a", r"x.yaml:1: expected an object"),
    ],
)
def test_errors_name_line_and_field(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        describe_text(text)


def test_world_has_the_objects_of_policies() -> None:
    result = describe_text(WEB + "---" + POLICIES)
    world = result.world
    assert [pod.metadata.labels for pod in world.pods] == [{"app": "web"}] * 3
    assert world.labels_of("shop")["team"] == "a"
    (policy,) = world.policies
    assert policy.spec.types == ("Ingress", "Egress")
    (cluster_policy,) = world.cluster_policies
    assert (cluster_policy.spec.tier, cluster_policy.spec.priority) == ("Admin", 7)


def test_fields_have_lines() -> None:
    result = describe_text(POLICIES)
    line = result.line
    assert (
        line("NetworkPolicy", "shop/db", "spec.ingress[0].from[0].namespaceSelector.matchLabels[team]") == "x.yaml:13"
    )
    assert line("NetworkPolicy", "shop/db", "spec.policyTypes") == "x.yaml:9"
    assert line("ClusterNetworkPolicy", "floor", "spec.ingress[0]") == "x.yaml:20"
    assert line("NetworkPolicy", "shop/other") == ""


def test_the_last_of_duplicate_objects_is_used() -> None:
    result = describe_text(POLICIES + "---" + POLICIES.replace("app: db", "app: web"))
    (policy,) = result.world.policies
    assert policy.spec.pod_selector.match_labels == {"app": "web"}
    assert "NetworkPolicy shop/db is in x.yaml:6 and in x.yaml:26; the second definition is used" in result.notes
    assert result.duplicates["NetworkPolicy shop/db"] == "x.yaml:6"


def test_all_mistakes_are_reported_together() -> None:
    text = POLICIES.replace("cidr: 10", "cidr: x").replace("action: Deny", "action: Drop") + "---" + BY_HAND
    with pytest.raises(ConfigErrors) as caught:
        describe_text(text.replace("10.0.0.5", "here"))
    assert [line.partition(" ")[0] for line in str(caught.value).splitlines()] == [
        "x.yaml:14:",
        "x.yaml:20:",
        "x.yaml:33:",
    ]


def test_unenforced_policies_are_noted() -> None:
    other = "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: c, namespace: shop}\n"
    result = describe_text(POLICIES + "---\n" + other)
    assert [manifest.kind for manifest in result.unenforced] == ["CiliumNetworkPolicy"]
    assert result.notes[0] == (
        "CiliumNetworkPolicy shop/c in x.yaml:22 is skipped: "
        "podwire does not enforce CiliumNetworkPolicy of cilium.io/v2; "
        "it has an effect only if another component of the cluster enforces it"
    )


def test_unknown_kinds_of_peers_are_noted() -> None:
    result = describe_text(POLICIES.replace("from: [{namespaces: {}}]", "from: [{galaxies: {}}]"))
    (policy,) = result.world.cluster_policies
    assert not policy.spec.ingress[0].peers[0].known
    assert any(note.startswith("x.yaml:20: spec.ingress[0].from[0].galaxies: unknown kind") for note in result.notes)


def test_pods_of_jobs() -> None:
    spec = "template: {metadata: {labels: {a: b}}, spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}"
    text = f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: once}}\nspec: {{parallelism: 2, {spec}}}\n---\n"
    cron = f"{{schedule: '* * * * *', jobTemplate: {{spec: {{{spec}}}}}}}"
    text += f"apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: often}}\nspec: {cron}\n"
    pods = describe_text(text).world.pods
    assert [pod.metadata.name for pod in pods] == ["once-0", "once-1", "often-0"]
    assert pods[0].metadata.labels == {"a": "b", "job-name": "once", "batch.kubernetes.io/job-name": "once"}


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(WEB)
    (tmp_path / "b.yaml").write_text(NODES)
    assert service(describe((str(tmp_path),)), "shop", "web").spec.ports[0].port == 80
    with pytest.raises(ConfigError, match="no such file"):
        describe((str(tmp_path / "c.yaml"),))
