"""Programs in pods use the API as in any cluster: address from the environment, token and CA from a volume.

The image is a local command by the ``images:`` table: this environment's Python, with the public client library.
"""

import base64
import json
import sys
from collections.abc import Iterator

import pytest
from tests.e2e.clusters import own_name, running
from tests.e2e.driver import Cluster, eventually

IN_CLUSTER = """
import sys
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

config.load_incluster_config()
core = client.CoreV1Api()
namespace = open("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read()
core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="made-inside")))
for event in watch.Watch().stream(core.list_namespaced_config_map, namespace, timeout_seconds=10):
    if event["object"].metadata.name == "made-inside":
        print("seen", event["type"])
        break
me = client.AuthenticationV1Api().create_self_subject_review({"kind": "SelfSubjectReview"}).status.user_info
print("user", me.username)
print("pod", me.extra["authentication.kubernetes.io/pod-name"][0])
print("pods", sorted(p.metadata.name for p in core.list_namespaced_pod(namespace).items))
sys.stdout.flush()
"""

BY_NAME = """
import json, ssl, urllib.request
place = "/var/run/secrets/kubernetes.io/serviceaccount/"
trusted = ssl.create_default_context(cafile=place + "ca.crt")
headers = {"Authorization": "Bearer " + open(place + "token").read()}
for host in ("kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "kubernetes"):
    asked = urllib.request.Request(f"https://{host}/api/v1/namespaces/default/services/kubernetes", headers=headers)
    print(json.load(urllib.request.urlopen(asked, context=trusted, timeout=30))["spec"]["clusterIP"])
"""


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one node whose image table contains this Python."""
    folder = tmp_path_factory.mktemp("inside")
    (folder / "config.yaml").write_text(
        f"images: [{{prefix: registry.example.com/python, command: [{sys.executable}]}}]\n"
    )
    with running(own_name("inside"), "--nodes", "1", "--config", str(folder / "config.yaml")) as cluster:
        yield cluster


def _manifest(name: str, script: str, namespace: str = "default", **spec: object) -> str:
    return json.dumps({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "registry.example.com/python:3", "args": ["-c", script]}],
            **spec,
        },
    })  # fmt: skip


def _output(cluster: Cluster, name: str, namespace: str = "default") -> list[str]:
    """The output of a pod that succeeded."""
    where = ("-n", namespace)

    def phase() -> str:
        result = cluster.kubectl("get", "pod", name, *where, "-o", "jsonpath={.status.phase}")
        return result if result in ("Succeeded", "Failed") else ""

    ended = eventually(phase)
    output = cluster.kubectl("logs", name, *where)
    assert ended == "Succeeded", output
    return output.splitlines()


def _claims(token: str) -> dict[str, object]:
    body = token.split(".")[1]
    claims: dict[str, object] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


def test_client_library_in_a_pod_uses_its_service_account(inside: Cluster) -> None:
    inside.kubectl("create", "namespace", "inner")
    inside.kubectl(
        *["create", "rolebinding", "-n", "inner", "edits", "--clusterrole=edit", "--serviceaccount=inner:default"]
    )
    inside.apply(_manifest("api", IN_CLUSTER, "inner"))
    assert _output(inside, "api", "inner") == [
        "seen ADDED", "user system:serviceaccount:inner:default", "pod api", "pods ['api']",
    ]  # fmt: skip


def test_the_api_has_its_names_in_its_certificate(inside: Cluster) -> None:
    inside.kubectl(*["create", "rolebinding", "views", "--clusterrole=view", "--serviceaccount=default:default"])
    inside.apply(_manifest("names", BY_NAME))
    assert _output(inside, "names") == ["10.96.0.1"] * 3


def test_the_token_belongs_to_the_pod_and_ends_with_it(inside: Cluster) -> None:
    inside.kubectl("create", "serviceaccount", "clerk")
    script = (
        "import time; print(open('/var/run/secrets/kubernetes.io/serviceaccount/token').read(), flush=True); "
        "time.sleep(600)"
    )
    inside.apply(_manifest("holder", script, serviceAccountName="clerk"))
    inside.kubectl("wait", "--for=condition=Ready", "pod/holder", "--timeout=90s")
    token = eventually(lambda: inside.kubectl("logs", "holder")).strip()
    pod = inside.get("pod", "holder")
    bound = _claims(token)["kubernetes.io"]
    assert isinstance(bound, dict)
    assert bound["pod"] == {"name": "holder", "uid": pod["metadata"]["uid"]}
    assert bound["serviceaccount"]["name"] == "clerk"
    server = json.loads(inside.kubectl("config", "view", "-o", "json"))["clusters"][0]["cluster"]["server"]
    bare = ["kubectl", "--kubeconfig=/dev/null", "--server", server, "--insecure-skip-tls-verify", "--token", token]
    user = inside.run([*bare, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])
    assert user.stdout == "system:serviceaccount:default:clerk", user.stderr
    inside.kubectl("delete", "pod", "holder")
    assert "must be logged in" in inside.run([*bare, "get", "pods"]).stderr


def test_pod_may_refuse_the_token_and_project_another(inside: Cluster) -> None:
    script = "import os; print(os.path.exists('/var/run/secrets/kubernetes.io/serviceaccount'))"
    inside.apply(_manifest("without", script, automountServiceAccountToken=False))
    source = {"serviceAccountToken": {"path": "vault", "audience": "vault", "expirationSeconds": 600}}
    pod = json.loads(_manifest("own", "print(open('/tokens/vault').read())", automountServiceAccountToken=False))
    pod["spec"]["volumes"] = [{"name": "t", "projected": {"sources": [source]}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "t", "mountPath": "/tokens"}]
    inside.apply(json.dumps(pod))
    assert _output(inside, "without") == ["False"]
    claims = _claims(_output(inside, "own")[0])
    assert claims["aud"] == ["vault"]
    assert int(str(claims["exp"])) - int(str(claims["iat"])) == 600


def test_an_account_that_is_not_there_is_refused(inside: Cluster) -> None:
    refused = inside.refused("apply", "-f", "-", stdin=_manifest("nobody", "0", serviceAccountName="nobody"))
    assert 'error looking up service account default/nobody: serviceaccount "nobody" not found' in refused
