"""Defaults of webhook configurations."""

from podwire.embedded.apiserver.defaults.pods import Json, fill, items_of


def validating(obj: Json) -> None:
    """Fills in a ValidatingWebhookConfiguration."""
    for hook in items_of(obj, "webhooks"):
        fill(
            hook,
            {
                "failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
                "timeoutSeconds": 10,
            },
        )  # fmt: skip
        for rule in items_of(hook, "rules"):
            fill(rule, {"scope": "*"})
        client = hook.get("clientConfig")
        if isinstance(client, dict) and isinstance(client.get("service"), dict):
            fill(client["service"], {"port": 443})


def mutating(obj: Json) -> None:
    """Fills in a MutatingWebhookConfiguration."""
    validating(obj)
    for hook in items_of(obj, "webhooks"):
        fill(hook, {"reinvocationPolicy": "Never"})
