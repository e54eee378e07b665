"""The configuration of the gateway, read from one YAML document."""

from pathlib import Path

import msgspec

from podwire.cluster.names import GATEWAY_CONTROLLER, INGRESS_CONTROLLER
from podwire.errors import ConfigError
from podwire.gateway.api.services import TrafficPolicy
from podwire.model.document import not_yaml, wrong

COMPONENT = "podwire-gateway"
"""The name of the gateway in Events and in its loops."""


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Settings; the defaults suit a pod with the gateway and the engine as containers.

    ``run_dir`` has the sockets that both containers share. Engines listen on ``listen`` at ``http_port`` and
    ``https_port`` for Ingresses, and on ``ready_port`` once they have their first configuration. ``publish_service``
    (``namespace/name``) is the Service whose addresses become the status of Ingresses; with ``publish_nodes`` those of
    the nodes with its endpoints do; ``publish_addresses`` replace both. ``ingress_config`` (``namespace/name``)
    is a ConfigMap with the keys of ingress-nginx. ``trusted_networks`` have the proxies in front whose headers
    are believed. ``external_traffic_policy`` is that of the Services of Gateways: Local keeps the addresses of clients
    and needs a gateway on every node that clients reach.
    """

    kubeconfig: str = ""
    run_dir: str = "/run/podwire-gateway"
    ingress_controller: str = INGRESS_CONTROLLER
    gateway_controller: str = GATEWAY_CONTROLLER
    listen: str = "::"
    http_port: int = 8000
    https_port: int = 8443
    ready_port: int = 8002
    health_port: int = 8081
    publish_service: str = ""
    publish_addresses: tuple[str, ...] = ()
    publish_nodes: bool = False
    ingress_config: str = ""
    trusted_networks: tuple[str, ...] = ()
    proxy_protocol: bool = False
    access_log: str = "/dev/stdout"
    concurrency: int = 0
    external_traffic_policy: TrafficPolicy = "Local"
    namespace: str = "kube-system"
    """Where the Lease of those who write status and the Services of Gateways stand: the namespace of the engines."""


def parse_gateway_config(text: bytes | str, source: str) -> GatewayConfig:
    """The settings in a YAML (or JSON) document; an empty document means all defaults.

    Raises: ConfigError naming the field.
    """
    try:
        config = msgspec.yaml.decode(text, type=GatewayConfig | None) or GatewayConfig()
    except msgspec.ValidationError as failure:
        raise wrong(failure, GatewayConfig, source) from failure
    except msgspec.DecodeError as failure:
        raise not_yaml(failure, source) from failure
    ports = {"httpPort": config.http_port, "httpsPort": config.https_port, "readyPort": config.ready_port}
    for field, port in (ports | {"healthPort": config.health_port}).items():
        if not 0 < port < 65536:
            raise ConfigError(source, field, f"expected 1 to 65535, got {port}")
    if len(set(ports.values())) < len(ports):
        raise ConfigError(source, "httpPort", "httpPort, httpsPort and readyPort must differ")
    for field, name in (("publishService", config.publish_service), ("ingressConfig", config.ingress_config)):
        if name and name.count("/") != 1:
            raise ConfigError(source, field, f"expected namespace/name, got {name!r}")
    return config


def load_gateway_config(file: str) -> GatewayConfig:
    """The settings in a file.

    Raises: ConfigError.
    """
    try:
        text = Path(file).read_bytes()
    except OSError as problem:
        raise ConfigError(file, "", problem.strerror or str(problem)) from problem
    return parse_gateway_config(text, file)
