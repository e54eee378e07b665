"""Users test manifests with pytest: the example, the example with a mistake, and cleaning up."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.errors import ConfigError
from podwire.local import inventory
from podwire.testing import lifecycle
from podwire.testing.cluster import Cluster, cluster
from podwire.testing.reachability import Undecided

_EXAMPLE = Path(__file__).parents[2] / "examples/guarded"
_RED = """
from podwire.testing.cluster import Cluster


def test_red_because_of_a_policy(shop: Cluster) -> None:
    assert shop.pod("shop/web").reaches("shop/db:sql")


def test_red_because_it_is_let_through(shop: Cluster) -> None:
    assert not shop.pod("shop/web").reaches("api:http")


def test_red_because_nobody_listens(podwire_cluster: Cluster) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lonely"}}
    podwire_cluster.apply(pod | {"spec": {"containers": [{"name": "a", "image": "nginx"}]}})
    assert podwire_cluster.node("node-1").reaches("default/lonely:81")


def test_red_because_of_a_word(podwire_cluster: Cluster) -> None:
    assert podwire_cluster.pod("default/lonely").reaches("db:80")


def test_red_because_of_kubectl(podwire_cluster: Cluster) -> None:
    podwire_cluster.kubectl("get", "nobody")
"""
_KILLED = """
import os, signal
from podwire.testing import cluster
with cluster(nodes=1) as c:
    print(c.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
_WEB = """
apiVersion: v1
kind: Pod
metadata: {name: %(name)s, labels: {app: %(app)s}}
spec:
  nodeName: %(node)s
  containers: [{name: main, image: nginx, ports: [{containerPort: 80}, {containerPort: 53, protocol: UDP}]}]
"""
_SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: db}
spec:
  selector: {app: db}
  ports: [{name: http, port: 8080, targetPort: 80}, {name: dns, port: 53, protocol: UDP}]
"""


def python(*arguments: str, folder: Path | None = None, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=timeout, cwd=folder, check=False
    )


def test_the_example_is_green_and_mistakes_are_explained(tmp_path: Path) -> None:
    shutil.copytree(_EXAMPLE, tmp_path / "shop")
    (tmp_path / "shop/tests/test_red.py").write_text(_RED)
    earlier = inventory.names()
    arguments = ("-m", "pytest", "-p", "no:cacheprovider", "-n", "1", "--podwire-nodes", "2", "tests")
    done = python(*arguments, folder=tmp_path / "shop")
    output = done.stdout
    assert "5 failed, 12 passed" in output, output + done.stderr
    policies = "k8s/policies.yaml"
    assert "assert <shop/web -> shop/db:sql: not reached, policies deny it>" in output
    assert f"DROPPED, isolated by shop/names ({policies}:13), shop/nothing ({policies}:6), shop/web" in output
    assert "assert not <shop/web -> api:http: reached>" in output
    assert "allowed by shop/web egress[0]" in output
    assert "<node/node-1 -> default/lonely:81: not reached, refused>" in output
    assert "'default/lonely' names no running pod" in output
    assert "podwire/testing/" not in output and "podwire/local/" not in output, f"the test's line is enough: {output}"
    remaining = [name for name in inventory.names() if name in output and name not in earlier]
    assert remaining == []


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """Two databases, one on each node, and their client."""
    with cluster(nodes=2) as created:
        created.apply(*(_WEB % {"name": f"db-{n}", "app": "db", "node": f"node-{n}"} for n in (1, 2)))
        created.apply(_WEB % {"name": "web", "app": "web", "node": "node-1"}, _SERVICE)
        yield created


def test_what_kubectl_changes_is_in_force_when_asked(own: Cluster) -> None:
    web = own.pod("web")
    with own.restored():
        for _ in range(2):
            assert web.reaches("db:http") and web.reaches("db:53/UDP") and web.reaches("default/db:80")
            deny = {"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"]}
            policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny"}}
            own.kubectl("apply", "-f", "-", stdin=str(policy | {"spec": deny}).replace("'", '"'))
            assert web.reaches("default/db:80").denied
            own.kubectl("label", "pod", "db-1", "db-2", "app=free", "--overwrite")
            assert web.reaches("default/app=free:80")
            assert not web.reaches("db:http").denied, "a Service without endpoints refuses"
            own.kubectl("label", "pod", "db-1", "db-2", "app=db", "--overwrite")
            own.delete(policy)


def test_neither_all_nor_none_is_no_answer(own: Cluster) -> None:
    subset = {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "half"},
        "spec": {"podSelector": {"matchLabels": {"statefulset": "no"}}, "policyTypes": ["Ingress"]},
    }  # fmt: skip
    with own.restored():
        own.kubectl("label", "pod", "db-1", "statefulset=no")
        own.apply(subset)
        for target in ("default/db:80", "db:http"):
            with pytest.raises(Undecided, match="some connections were made and others were not"):
                bool(own.pod("web").reaches(target))
        own.delete(subset)
        own.kubectl("label", "pod", "db-1", "statefulset-")


def test_the_outside_has_any_address_in_any_protocol(own: Cluster) -> None:
    block = {"cidr": "198.51.100.0/24", "except": ["198.51.100.7/32"]}
    policy = {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "partners"},
        "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": block}]}],
                 "egress": [{"to": [{"ipBlock": block}]}], "policyTypes": ["Ingress", "Egress"]},
    }  # fmt: skip
    assert own.pod("web").reaches("default/db:9/SCTP")
    with own.applied(policy):
        assert own.pod("web").reaches("default/db:9/SCTP").denied
        with pytest.raises(ConfigError, match="SCTP connections can be tried between pods only"):
            own.outside_at("198.51.100.6").reaches("default/db:9/SCTP")
        assert own.outside_at("198.51.100.6").reaches("default/web:80")
        assert own.outside_at("198.51.100.7").reaches("default/web:80").denied
        assert own.pod("web").reaches("198.51.100.6:53/UDP")
        assert own.pod("web").reaches("198.51.100.7:53/UDP").denied
        assert own.pod("web").reaches("external").denied
    assert own.pod("web").reaches("external") and own.outside.reaches("default/web:53/UDP")


def test_reset_deletes_new_objects_and_restores_labels(own: Cluster) -> None:
    uid = own.kubectl("get", "node", "node-1", "-o", "jsonpath={.metadata.uid}")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": uid}
    note = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of-node-1", "ownerReferences": [owner]}}
    with own.restored():
        own.kubectl("apply", "-f", "-", stdin=json.dumps(note))
        own.kubectl("create", "namespace", "extra")
        own.kubectl("create", "deployment", "more", "--image=nginx", "--replicas=2")
        own.kubectl("label", "namespace", "default", "team=red")
        own.kubectl("label", "node", "node-1", "disk=ssd")
    assert own.kubectl("get", "deployments,pods", "-o", "name").split() == ["pod/db-1", "pod/db-2", "pod/web"]
    own.kubectl("delete", "configmap", "of-node-1")  # it belongs to what was there before
    assert "extra" not in own.kubectl("get", "namespaces", "-o", "name")
    labels = own.kubectl("get", "namespace/default", "node/node-1", "--show-labels")
    assert "team=red" not in labels and "disk=ssd" not in labels


def test_next_run_cleans_up_after_a_killed_run(own: Cluster) -> None:
    killed = python("-c", _KILLED)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    name = killed.stdout.strip()
    assert name in inventory.names()
    with cluster(nodes=1, config={"podCIDRs": ["fd44::/48"], "serviceCIDRs": ["fd96::/112"]}) as other:
        assert name not in inventory.names()
        assert {own.name, other.name} <= set(inventory.names())
        other.apply(*(_WEB % {"name": app, "app": app, "node": "node-1"} for app in ("web", "db")), _SERVICE)
        assert other.pod("web").reaches("db:http") and other.pod("web").reaches("external:53/UDP")
        assert other.outside.reaches("default/db:80")
    assert other.name not in inventory.names()
    assert own.name in inventory.names()
    assert not Path("/dev/shm", name).exists()


def test_a_cluster_that_is_kept_is_named_and_runs_on(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("routing: {backend: hostgw}\n")
    (tmp_path / "test_it.py").write_text(
        "def test_it(podwire_cluster):\n"
        "    shown = podwire_cluster.kubectl('get', 'nodes', '-o', 'jsonpath={.items[*].metadata.annotations}')\n"
        "    assert 'hostgw' in shown\n"
    )
    options = ("--podwire-keep", "--podwire-nodes", "1", "--podwire-config", "cluster.yaml")
    done = python("-m", "pytest", "-p", "no:cacheprovider", *options, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    name = done.stdout.rpartition("podwire down --name ")[2].split()[0]
    try:
        assert f"cluster {name} is kept; use it with: podwire kubeconfig --name {name}" in done.stdout
        assert name in inventory.names() and name not in lifecycle.stale(inventory.names())
    finally:
        lifecycle.down(name)


def test_user_without_root_gets_instructions(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(podwire_cluster):\n    assert podwire_cluster\n")
    arguments = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        ["setpriv", "--bounding-set=-net_admin", *arguments], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 1
    assert "local clusters need CAP_NET_ADMIN" in done.stdout
    assert "Traceback" not in done.stdout


def test_invalid_configuration_is_reported_and_leaves_nothing() -> None:
    arguments = "from podwire.testing.cluster import cluster\nwith cluster(config={'proxy': {'mode': 'magic'}}): pass"
    done = python("-c", arguments)
    assert "proxy.mode" in done.stderr and "magic" in done.stderr
    assert not [name for name in inventory.names() if name.startswith("pytest-") and name in lifecycle.stale((name,))]
