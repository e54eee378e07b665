"""Defaults of ``flowcontrol.apiserver.k8s.io``."""

from podwire.embedded.apiserver.defaults.pods import Json, fill, section

_PRECEDENCE = 1000
_SHARES = 30
_QUEUING = {"queues": 64, "handSize": 8, "queueLengthLimit": 50}


def fill_flow_schema(obj: Json) -> None:
    """Defaults of a FlowSchema."""
    fill(section(obj, "spec"), {"matchingPrecedence": _PRECEDENCE})


def fill_priority_level(obj: Json) -> None:
    """Defaults of a PriorityLevelConfiguration."""
    spec = section(obj, "spec")
    if spec.get("type") == "Exempt":
        fill(section(spec, "exempt"), {"nominalConcurrencyShares": 0, "lendablePercent": 0})
    limited = spec.get("limited")
    if isinstance(limited, dict):
        fill(limited, {"nominalConcurrencyShares": _SHARES, "lendablePercent": 0})
        response = limited.get("limitResponse")
        if isinstance(response, dict) and isinstance(response.get("queuing"), dict):
            fill(response["queuing"], _QUEUING)
