"""The command lines and configuration files of Kubernetes' programs (pure).

Sources: the reference of each program's flags on kubernetes.io, and kubeadm's manifests (cmd/kubeadm/app/phases), which
have the same flags for certificates and front proxies. Only flags that Kubernetes 1.30 to 1.36 have.
"""

from pathlib import Path
from typing import Any

from tests.real.layout import (
    API_PORT,
    CLUSTER_CIDR,
    CONTROL_ADDRESS,
    DNS_ADDRESS,
    DOMAIN,
    RUNTIME_SOCKET,
    SANDBOX_IMAGE,
    SERVICE_CIDR,
    SHARED_FOLDERS,
    RealLayout,
)

_ETCD = "https://127.0.0.1:2379"


def _words(program: Path, options: dict[str, str]) -> list[str]:
    return [str(program), *(f"--{name}={value}" for name, value in options.items())]


def etcd(program: Path, layout: RealLayout) -> list[str]:
    """etcd with one member, for clients with a certificate alone."""
    peer = "https://127.0.0.1:2380"
    options = {
        "name": "one",
        "data-dir": str(layout.root / "etcd"),
        "listen-client-urls": _ETCD,
        "advertise-client-urls": _ETCD,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"one={peer}",
        "cert-file": layout.certificate("etcd"),
        "key-file": layout.key("etcd"),
        "trusted-ca-file": layout.certificate("ca"),
        "client-cert-auth": "true",
        "peer-cert-file": layout.certificate("etcd"),
        "peer-key-file": layout.key("etcd"),
        "peer-trusted-ca-file": layout.certificate("ca"),
        "peer-client-cert-auth": "true",
        "unsafe-no-fsync": "true",
    }
    return _words(program, options)


def apiserver(program: Path, layout: RealLayout) -> list[str]:
    """kube-apiserver on the fabric's address."""
    options = {
        "advertise-address": CONTROL_ADDRESS,
        "bind-address": CONTROL_ADDRESS,
        "secure-port": str(API_PORT),
        "etcd-servers": _ETCD,
        "etcd-cafile": layout.certificate("ca"),
        "etcd-certfile": layout.certificate("apiserver-etcd-client"),
        "etcd-keyfile": layout.key("apiserver-etcd-client"),
        "client-ca-file": layout.certificate("ca"),
        "tls-cert-file": layout.certificate("apiserver"),
        "tls-private-key-file": layout.key("apiserver"),
        "kubelet-certificate-authority": layout.certificate("ca"),
        "kubelet-client-certificate": layout.certificate("apiserver-kubelet-client"),
        "kubelet-client-key": layout.key("apiserver-kubelet-client"),
        "kubelet-preferred-address-types": "InternalIP",
        "service-account-issuer": f"https://kubernetes.default.svc.{DOMAIN}",
        "service-account-key-file": str(layout.keys / "service-accounts.pub"),
        "service-account-signing-key-file": layout.key("service-accounts"),
        "service-cluster-ip-range": SERVICE_CIDR,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "requestheader-client-ca-file": layout.certificate("front-proxy-ca"),
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": layout.certificate("front-proxy-client"),
        "proxy-client-key-file": layout.key("front-proxy-client"),
    }
    return _words(program, options)


def controller_manager(program: Path, layout: RealLayout) -> list[str]:
    """kube-controller-manager with all of its own controllers: podwire's stand aside."""
    kubeconfig = layout.kubeconfig("controller-manager")
    options = {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "bind-address": "127.0.0.1",
        "allocate-node-cidrs": "true",
        "cluster-cidr": CLUSTER_CIDR,
        "service-cluster-ip-range": SERVICE_CIDR,
        "cluster-signing-cert-file": layout.certificate("ca"),
        "cluster-signing-key-file": layout.key("ca"),
        "root-ca-file": layout.certificate("ca"),
        "client-ca-file": layout.certificate("ca"),
        "requestheader-client-ca-file": layout.certificate("front-proxy-ca"),
        "service-account-private-key-file": layout.key("service-accounts"),
        "use-service-account-credentials": "true",
        "leader-elect": "false",
    }
    return _words(program, options)


def scheduler(program: Path, layout: RealLayout) -> list[str]:
    """kube-scheduler."""
    kubeconfig = layout.kubeconfig("scheduler")
    options = {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "bind-address": "127.0.0.1",
        "leader-elect": "false",
    }
    return _words(program, options)


def kubelet(program: Path, layout: RealLayout, node: str) -> list[str]:
    """The kubelet of a node."""
    options = {
        "kubeconfig": layout.kubeconfig(node),
        "config": str(layout.node_folder(node) / "kubelet.json"),
        "hostname-override": node,
        "node-ip": layout.node_address(node),
    }
    return _words(program, options)


def kubelet_configuration(layout: RealLayout, node: str) -> dict[str, Any]:
    """KubeletConfiguration: pods of several nodes share the machine, so no groups of the whole machine are claimed."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.node_address(node),
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": layout.certificate("ca")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": layout.certificate(f"kubelet-{node}"),
        "tlsPrivateKeyFile": layout.key(f"kubelet-{node}"),
        "containerRuntimeEndpoint": f"unix://{RUNTIME_SOCKET}",
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": DOMAIN,
        "resolvConf": str(layout.root / "resolv.conf"),
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
    }


def containerd_configuration() -> str:
    """containerd in a node's mount namespace: the usual paths, images that were imported."""
    return f"""
version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{SANDBOX_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""


def mounts(layout: RealLayout, node: str) -> str:
    """The shell script that gives a node its own folders, and then waits in its mount namespace."""
    lines = ["set -e"]
    for folder in SHARED_FOLDERS:
        own = f"{layout.node_folder(node)}/folders{folder}"
        lines += [f"mkdir -p {own}", f"mount --bind {own} {folder}"]
    return "\n".join([*lines, "mount --make-rshared /", "echo ready", "exec sleep infinity"])


def chart_values(image: str) -> dict[str, Any]:
    """Values of podwire's chart: the whole network, with this image."""
    repository, _, tag = image.rpartition(":")
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "api": {"host": CONTROL_ADDRESS, "port": API_PORT},
        "clusterCIDRs": [CLUSTER_CIDR],
        "serviceCIDRs": [SERVICE_CIDR],
        "dns": {"clusterIP": DNS_ADDRESS},
    }
