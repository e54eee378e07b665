"""Reads what the gateway reads, and explains a URL.

Certificates are looked at only by their names: Secrets are not read, so that the question needs no right to them.
"""

import msgspec

from podwire.errors import NotFound
from podwire.gateway.backends import UpstreamFacts
from podwire.gateway.config import GatewayConfig, parse_gateway_config
from podwire.gateway.ingress.classes import served_ingresses
from podwire.gateway.ingress.settings import IngressDefaults, read_defaults
from podwire.gateway.ingress.translate import IngressFacts
from podwire.gateway.routes import Certificate
from podwire.kube.client import Client
from podwire.kube.resources import CONFIGMAPS, ENDPOINTSLICES, INGRESSCLASSES, INGRESSES, SERVICES
from podwire.model.meta import key_of
from podwire.model.service import SERVICE_NAME_LABEL, EndpointSlice
from podwire.why.gateway.explain import UrlAnswer, UrlQuestion, explain_url, unserved

_NAMESPACE, _CONFIG = "kube-system", "podwire-gateway"


async def ask_url(question: UrlQuestion, client: Client) -> UrlAnswer:
    """The answer with the objects of an API server.

    Raises: ConfigError for a URL that cannot be asked; ApiError, ApiUnreachable.
    """
    question.request()
    config = await _config(client)
    ingresses = (await client.list(INGRESSES)).items
    classes = (await client.list(INGRESSCLASSES)).items
    services = {key_of(item.metadata): item for item in (await client.list(SERVICES)).items}
    slices: dict[str, list[EndpointSlice]] = {}
    for item in (await client.list(ENDPOINTSLICES)).items:
        name = item.metadata.labels.get(SERVICE_NAME_LABEL, "")
        slices.setdefault(f"{item.metadata.namespace}/{name}", []).append(item)
    facts = IngressFacts(
        ingresses=served_ingresses(ingresses, classes, config.ingress_controller),
        upstreams=UpstreamFacts(services=services, slices=lambda key: slices.get(key, ())),
        certificate=lambda key: Certificate(name=key, chain=""),
        users=lambda _key, _kind: "",
        default_certificate=Certificate(name="default", chain=""),
        defaults=await _defaults(client, config.ingress_config),
    )
    return explain_url(question, facts, unserved(ingresses, classes, config.ingress_controller))


async def _config(client: Client) -> GatewayConfig:
    data = await _config_map(client, _NAMESPACE, _CONFIG)
    return parse_gateway_config(data.get("config.yaml", ""), f"ConfigMap {_NAMESPACE}/{_CONFIG}")


async def _defaults(client: Client, name: str) -> IngressDefaults:
    namespace, _, config_map = name.partition("/")
    return read_defaults(await _config_map(client, namespace, config_map) if name else {})[0]


async def _config_map(client: Client, namespace: str, name: str) -> dict[str, str]:
    try:
        answer = await client.get(CONFIGMAPS, name, namespace)
    except NotFound:
        return {}
    return msgspec.convert(answer.get("data") or {}, dict[str, str])
