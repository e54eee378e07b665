"""What a person reads about a manifest that the API server refuses: file, line, field, and what was expected."""

import pytest

from podwire.errors import ApiError
from podwire.local.manifesterrors import refused
from podwire.local.manifests import Manifest, parse_manifests

SERVICE = """apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  ports:
    - port: "80"
  selector: [app]
  clustrIP: 10.96.0.1
"""
DECODING = 'Service in version "v1" cannot be handled as a Service: '
WRONG_TYPE = f"{DECODING}json: cannot unmarshal"


def manifest() -> Manifest:
    (found_object,) = parse_manifests(SERVICE, "x.yaml")
    return found_object


def failure(message: str, *causes: dict[str, str]) -> ApiError:
    return ApiError(422 if causes else 400, "Invalid", message, {"causes": list(causes)} if causes else None)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            failure(f"{WRONG_TYPE} string into Go struct field ServicePort.spec.ports.port of type int32"),
            "x.yaml:5: spec.ports.port: Service shop/web: expected a number, found a text",
        ),
        (
            failure(f"{WRONG_TYPE} array into Go struct field ServiceSpec.spec.selector of type map[string]string"),
            "x.yaml:7: spec.selector: Service shop/web: expected an object with texts, found a list",
        ),
        (
            failure(f'{DECODING}strict decoding error: unknown field "spec.clustrIP"'),
            "x.yaml:8: spec.clustrIP: Service shop/web: there is no such field",
        ),
        (
            failure("failed to create typed patch object (shop/web; v1): .spec.clustrIP: field not declared in schema"),
            "x.yaml:8: spec.clustrIP: Service shop/web: there is no such field",
        ),
        (
            failure(
                'Service "web" is invalid: [...]',
                {"field": "spec.ports[0].port", "message": "must be between 1 and 65535"},
                {"field": "spec.clusterIP", "message": "is not in the range"},
            ),
            "x.yaml:6: spec.ports[0].port: Service shop/web: must be between 1 and 65535\n"
            "x.yaml:4: spec.clusterIP: Service shop/web: is not in the range",
        ),
        (failure("namespaces \"shop\" not found"), 'x.yaml:1: Service shop/web: namespaces "shop" not found'),
    ],
)  # fmt: skip
def test_refusal_names_file_line_and_field(answer: ApiError, text: str) -> None:
    assert str(refused(manifest(), answer)) == text
