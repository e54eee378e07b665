"""Reads what the gateway reads, and explains a URL.

Certificates are looked at only by their names: Secrets are not read, so that the question needs no right to them.
"""

import msgspec

from podwire.errors import NotFound
from podwire.gateway.api.services import addresses_of_service, gateway_services
from podwire.gateway.api.translate import GatewayApiFacts
from podwire.gateway.backends import UpstreamFacts
from podwire.gateway.config import GatewayConfig, parse_gateway_config
from podwire.gateway.ingress.classes import served_ingresses
from podwire.gateway.ingress.settings import IngressDefaults, read_defaults
from podwire.gateway.ingress.translate import IngressFacts
from podwire.gateway.routes import Certificate, TrustedAuthority
from podwire.kube.client import Client
from podwire.kube.optional import list_if_served
from podwire.kube.resources import (
    BACKENDTLSPOLICIES,
    CONFIGMAPS,
    ENDPOINTSLICES,
    GATEWAYCLASSES,
    GATEWAYS,
    GRPCROUTES,
    HTTPROUTES,
    INGRESSCLASSES,
    INGRESSES,
    LISTENERSETS,
    NAMESPACES,
    REFERENCEGRANTS,
    SERVICES,
    TLSROUTES,
)
from podwire.model.meta import key_of
from podwire.model.service import SERVICE_NAME_LABEL, EndpointSlice
from podwire.why.gateway.explain import UrlAnswer, UrlFacts, UrlQuestion, explain_url, unserved

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
    upstreams = UpstreamFacts(services=services, slices=lambda key: slices.get(key, ()))
    served = served_ingresses(ingresses, classes, config.ingress_controller)
    facts = IngressFacts(
        ingresses=served,
        upstreams=upstreams,
        certificate=_certificate,
        users=lambda _key, _kind: "",
        default_certificate=Certificate(name="default", chain=""),
        defaults=await _defaults(client, config.ingress_config),
    )
    published = (entry for ingress in served for entry in ingress.status.load_balancer.ingress)
    return explain_url(
        question,
        UrlFacts(
            ingresses=facts,
            foreign=unserved(ingresses, classes, config.ingress_controller),
            addresses=tuple(dict.fromkeys(entry.ip or entry.hostname for entry in published)),
            gateways=await _gateways(client, config, upstreams),
        ),
    )


def _certificate(key: str) -> Certificate:
    return Certificate(name=key, chain="")


def _authority(key: str) -> TrustedAuthority:
    return TrustedAuthority(name=key, chain="")


async def _gateways(client: Client, config: GatewayConfig, upstreams: UpstreamFacts) -> GatewayApiFacts:
    """The objects of Gateway API; none where the API does not serve these kinds."""
    services = gateway_services(upstreams.services.values(), config.namespace)
    return GatewayApiFacts(
        controller=config.gateway_controller,
        classes=await list_if_served(client, GATEWAYCLASSES),
        gateways=await list_if_served(client, GATEWAYS),
        sets=await list_if_served(client, LISTENERSETS),
        routes=(
            *await list_if_served(client, HTTPROUTES),
            *await list_if_served(client, GRPCROUTES),
            *await list_if_served(client, TLSROUTES),
        ),
        policies=await list_if_served(client, BACKENDTLSPOLICIES),
        grants=await list_if_served(client, REFERENCEGRANTS),
        namespaces={item.metadata.name: item.metadata.labels for item in (await client.list(NAMESPACES)).items},
        addresses={key: addresses_of_service(service) for key, service in services.items()},
        upstreams=upstreams,
        certificate=_certificate,
        authority=_authority,
        system="not read",
    )


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
