"""The cases of Ingresses once more, as the objects of Gateway API that they are migrated to."""

from collections.abc import Callable

import msgspec

from podwire.gateway.api.translate import GatewayApiFacts
from podwire.gateway.ingress.translate import IngressFacts
from podwire.gateway.migrate.plan import MigrationFacts, MigrationPlan, migrate
from podwire.gateway.routes import Certificate
from podwire.model.gatewayapi import Gateway, GatewayClass, GatewayClassSpec, HttpRoute, ReferenceGrant
from podwire.model.meta import ObjectMeta

CONTROLLER, GATEWAY = "podwire.io/gateway", "entry/front"


def migration_of(facts: IngressFacts) -> MigrationPlan:
    """The migration of the Ingresses of a case."""
    return migrate(
        MigrationFacts(
            ingresses=facts.ingresses, gateway=GATEWAY, services=facts.upstreams.services, defaults=facts.defaults
        )
    )


def api_facts_of(plan: MigrationPlan, facts: IngressFacts, ports: dict[int, int]) -> GatewayApiFacts:
    """What the gateway reads when the objects of a migration are written; ``ports`` are those of the engine."""
    certificate: Callable[[str], Certificate | str] = facts.certificate
    return GatewayApiFacts(
        controller=CONTROLLER,
        classes=(GatewayClass(metadata=ObjectMeta(name="podwire"), spec=GatewayClassSpec(controller_name=CONTROLLER)),),
        gateways=tuple(msgspec.convert(item, Gateway) for item in plan.objects if item["kind"] == "Gateway"),
        routes=tuple(msgspec.convert(item, HttpRoute) for item in plan.objects if item["kind"] == "HTTPRoute"),
        grants=tuple(
            msgspec.convert(item, ReferenceGrant) for item in plan.objects if item["kind"] == "ReferenceGrant"
        ),
        ports={GATEWAY: ports},
        upstreams=facts.upstreams,
        certificate=certificate,
    )
