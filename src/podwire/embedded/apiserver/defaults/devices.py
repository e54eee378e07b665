"""Defaults of ``resource.k8s.io``: how many devices a request wants, and which taints a toleration is for."""

from podwire.embedded.apiserver.defaults.pods import Json, fill, items_of, section


def _tolerations(request: Json) -> None:
    for toleration in items_of(request, "tolerations"):
        fill(toleration, {"operator": "Equal"})


def _exact_request(request: Json) -> None:
    """Defaults of a request for devices of one class."""
    fill(request, {"allocationMode": "ExactCount"})
    if request["allocationMode"] == "ExactCount":
        fill(request, {"count": 1})
    _tolerations(request)


def _requests(spec: Json) -> None:
    for request in items_of(section(spec, "devices"), "requests"):
        if isinstance(request.get("exactly"), dict):
            _exact_request(request["exactly"])
        for alternative in items_of(request, "firstAvailable"):
            _exact_request(alternative)


def fill_claim(obj: Json) -> None:
    """Defaults of a ResourceClaim."""
    _requests(section(obj, "spec"))


def fill_claim_template(obj: Json) -> None:
    """Defaults of a ResourceClaimTemplate."""
    _requests(section(section(obj, "spec"), "spec"))
