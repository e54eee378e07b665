"""The kubelet's configuration, mounts of the machine, node status."""

import pytest

from podwire.embedded.kubelet.config import parse_config
from podwire.embedded.kubelet.mounts import machine_binds
from podwire.embedded.kubelet.node import machine_capacity, node_labels, render_node_status
from podwire.embedded.kubelet.remote import StreamOptions, parse_options, render_status
from podwire.errors import ConfigError

TEXT = """
node: node-1
kubeconfig: /k
runDir: /r
stateDir: /s
netnsDir: /n
zone: segment-1
addresses: [10.89.0.11]
cni: {binDir: /b, confDir: /c}
images: [{name: x, command: [y], workingDir: /w}]
"""


def test_configuration() -> None:
    config = parse_config(TEXT, "kubelet.yaml")
    assert (config.node, config.port, config.images[0].working_dir) == ("node-1", 10250, "/w")


@pytest.mark.parametrize(
    ("change", "path"), [("surprise: 1", ""), ("port: many", "port"), ("cni: {binDir: 1, confDir: /c}", "cni.binDir")]
)
def test_mistakes_are_named(change: str, path: str) -> None:
    key = change.partition(":")[0]
    lines = [line for line in TEXT.splitlines() if not line.startswith(f"{key}:")]
    with pytest.raises(ConfigError) as caught:
        parse_config("\n".join([*lines, change]), "kubelet.yaml")
    assert caught.value.path == path


def test_labels_and_status_of_a_node() -> None:
    config = parse_config(TEXT, "kubelet.yaml")
    assert node_labels(config)["topology.kubernetes.io/zone"] == "segment-1"
    capacity = machine_capacity("MemTotal:  1000 kB\n", 2, {"pods": "10"})
    status = render_node_status(config, capacity, problem="no plugin", changed="then", now="now")
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["lastTransitionTime"], ready["lastHeartbeatTime"]) == ("False", "then", "now")
    assert "no plugin" in ready["message"]
    assert status["capacity"] == {"cpu": "2", "memory": "1000Ki", "pods": "10", "ephemeral-storage": "100Gi"}
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}


MOUNTS = """22 27 0:21 / /proc rw - proc proc rw
25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw
27 1 254:0 / / rw - ext4 /dev/vda rw
28 27 0:25 / /mnt/data/inner rw - tmpfs x ro
29 27 0:25 / /mnt/data rw - tmpfs x ro
30 27 0:25 / /with\\040space rw - tmpfs x ro
42 27 0:4 net:[1] /run/other/netns/pod rw shared:1 - nsfs nsfs rw
43 27 0:4 / /run/podwire/demo/x rw - tmpfs tmpfs rw
"""


def test_binds_are_outermost_and_leave_out_what_is_hidden() -> None:
    assert machine_binds(MOUNTS, ("/run/podwire/demo",)) == ("/mnt/data", "/with space")


def test_wishes_of_both_spellings() -> None:
    pairs = [("command", "sh"), ("command", "-c"), ("input", "1"), ("stdout", "true"), ("tty", "0")]
    assert parse_options(pairs) == StreamOptions(command=("sh", "-c"), stdin=True, stdout=True)


@pytest.mark.parametrize(("code", "shown"), [(3, b'"ExitCode","message":"3"'), (-9, b'"ExitCode","message":"137"')])
def test_status_of_a_command(code: int, shown: bytes) -> None:
    assert shown in render_status(code)
    assert b"Success" in render_status(0)
    assert b"oh no" in render_status(None, "oh no")
