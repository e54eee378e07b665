"""The public Python client library against the API: typed objects, watch, patch, exec."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream
from tests.e2e.driver import Cluster, eventually, shell_pod
from tests.present import present


@pytest.fixture
def api(cluster: Cluster) -> Iterator[client.ApiClient]:
    configured = client.Configuration()
    config.load_kube_config(cluster.kubeconfig, client_configuration=configured)
    with _connected(configured) as created:
        yield created


@contextmanager
def _connected(configured: client.Configuration) -> Iterator[client.ApiClient]:
    """A client whose connections are closed after the block; the library leaves that to the garbage collector."""
    with client.ApiClient(configured) as api_client:
        try:
            yield api_client
        finally:
            api_client.rest_client.pool_manager.clear()


def _map(name: str, **data: str) -> client.V1ConfigMap:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"of": "client"}), data=data)


def test_objects_are_made_read_changed_and_deleted(api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    created = core.create_namespaced_config_map(namespace, _map("one", a="1"))
    assert present(created.metadata).uid and present(created.metadata).creation_timestamp is not None
    core.patch_namespaced_config_map("one", namespace, {"data": {"b": "2"}})
    read = core.read_namespaced_config_map("one", namespace)
    assert read.data == {"a": "1", "b": "2"}
    read.data["a"] = "9"
    assert present(core.replace_namespaced_config_map("one", namespace, read).data)["a"] == "9"
    with pytest.raises(ApiException) as conflict:
        core.replace_namespaced_config_map("one", namespace, read)
    assert conflict.value.status == 409
    with pytest.raises(ApiException) as exists:
        core.create_namespaced_config_map(namespace, _map("one"))
    assert exists.value.status == 409 and "already exists" in str(exists.value.body)
    core.delete_namespaced_config_map("one", namespace)
    with pytest.raises(ApiException) as gone:
        core.read_namespaced_config_map("one", namespace)
    assert gone.value.status == 404


def test_lists_come_in_pages_and_by_label(api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    for number in range(5):
        core.create_namespaced_config_map(namespace, _map(f"m-{number}"))
    names, token = [], None
    while token != "":
        page = core.list_namespaced_config_map(namespace, label_selector="of=client", limit=2, _continue=token)
        names += [present(item.metadata).name for item in page.items]
        token = present(page.metadata)._continue or ""
    assert names == [f"m-{number}" for number in range(5)]


def test_a_watch_from_a_version_misses_nothing(api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    start = present(core.list_namespaced_config_map(namespace).metadata).resource_version
    core.create_namespaced_config_map(namespace, _map("early"))
    observed: list[tuple[str, str]] = []
    looking = watch.Watch()

    def look() -> None:
        for event in looking.stream(
            core.list_namespaced_config_map,
            namespace,
            resource_version=start,
            label_selector="of=client",
            timeout_seconds=60,
        ):
            observed.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                looking.stop()

    thread = threading.Thread(target=look)
    thread.start()
    core.create_namespaced_config_map(namespace, _map("late"))
    core.delete_namespaced_config_map("late", namespace)
    thread.join(80)
    assert observed == [("ADDED", "early"), ("ADDED", "late"), ("DELETED", "late")]


def test_a_list_at_an_old_version_is_gone(api: client.ApiClient, namespace: str) -> None:
    core = client.CoreV1Api(api)
    with pytest.raises(ApiException) as gone:
        core.list_namespaced_config_map(namespace, resource_version="1", resource_version_match="Exact")
    assert gone.value.status == 410


def test_a_deployment_is_scaled_through_its_subresource(api: client.ApiClient, namespace: str) -> None:
    apps = client.AppsV1Api(api)
    labels = {"app": "web"}
    container = client.V1Container(name="main", image="nginx", ports=[client.V1ContainerPort(container_port=80)])
    template = client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels=labels), spec=client.V1PodSpec(containers=[container])
    )
    spec = client.V1DeploymentSpec(replicas=1, selector=client.V1LabelSelector(match_labels=labels), template=template)
    apps.create_namespaced_deployment(
        namespace, client.V1Deployment(metadata=client.V1ObjectMeta(name="web"), spec=spec)
    )
    scale = apps.read_namespaced_deployment_scale("web", namespace)
    assert present(scale.spec).replicas == 1 and present(scale.status).selector == "app=web"
    present(scale.spec).replicas = 2
    present(scale.metadata).resource_version = None  # the controllers write the status meanwhile
    apps.replace_namespaced_deployment_scale("web", namespace, scale)
    eventually(lambda: present(apps.read_namespaced_deployment("web", namespace).status).ready_replicas == 2)


def test_a_wrong_object_is_invalid_by_field(api: client.ApiClient, namespace: str) -> None:
    service: Any = {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 0}]}}
    with pytest.raises(ApiException) as invalid:
        client.CoreV1Api(api).create_namespaced_service(namespace, service)
    assert invalid.value.status == 422 and "spec.ports[0].port" in str(invalid.value.body)


def test_exec_by_websocket(api: client.ApiClient, cluster: Cluster, namespace: str) -> None:
    cluster.apply(shell_pod("box", "sleep 600"), "-n", namespace)
    cluster.ready("box", namespace=namespace)
    socket = stream(
        client.CoreV1Api(api).connect_get_namespaced_pod_exec,
        "box",
        namespace,
        command=["sh", "-c", "echo from $(hostname)"],
        stdout=True,
        stderr=True,
        stdin=False,
        tty=False,
        _preload_content=False,
    )
    try:
        socket.run_forever(timeout=60)
        output = socket.read_all()
    finally:
        socket.sock.shutdown()  # close() leaves the descriptor open when the server closed first
    assert output.strip() == "from box"


def test_without_credentials_nothing_is_written(cluster: Cluster, namespace: str) -> None:
    configured = client.Configuration()
    config.load_kube_config(cluster.kubeconfig, client_configuration=configured)
    configured.cert_file = configured.key_file = None
    configured.api_key = {}
    with _connected(configured) as anonymous, pytest.raises(ApiException) as refused:
        client.CoreV1Api(anonymous).create_namespaced_config_map(namespace, _map("no"))
    assert refused.value.status in (401, 403)
