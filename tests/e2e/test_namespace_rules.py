"""Rules of a namespace as kubectl meets them: Pod Security, LimitRange, ResourceQuota; schemas of definitions."""

import json

from tests.e2e.driver import Cluster, eventually

POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: nginx
    securityContext: {privileged: %s}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 5
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: nginx}]
"""
LIMITS = """
apiVersion: v1
kind: LimitRange
metadata: {name: limits}
spec:
  limits:
  - {type: Container, default: {cpu: 200m}, defaultRequest: {cpu: 100m}, max: {cpu: "1"}}
"""
DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: slips.rules.example}
spec:
  group: rules.example
  scope: Namespaced
  names: {plural: slips, kind: Slip}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {a: {type: strin}, b: {type: string, pattern: "("}}}
"""


def test_a_labelled_namespace_refuses_privileged_pods(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=baseline")
    refused = cluster.refused("create", "-n", namespace, "-f", "-", stdin=POD % ("p", "true"))
    assert (
        'pods "p" is forbidden: violates PodSecurity "baseline:latest": privileged (container "c" must not set '
        "securityContext.privileged=true)"
    ) in refused
    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=POD % ("p", "false"))


def test_a_quota_holds_a_deployment_back(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=LIMITS)
    cluster.kubectl("create", "quota", "q", "-n", namespace, "--hard=pods=3,requests.cpu=1")
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=DEPLOYMENT)

    def used() -> dict[str, str]:
        quota = json.loads(cluster.kubectl("get", "quota", "q", "-n", namespace, "-o", "json"))
        result: dict[str, str] = quota["status"]["used"]
        return result

    eventually(lambda: used() == {"pods": "3", "requests.cpu": "300m"})
    eventually(
        lambda: (
            "exceeded quota: q, requested: pods=1, used: pods=3, limited: pods=3"
            in cluster.kubectl("get", "events", "-n", namespace, "-o", "jsonpath={.items[*].message}")
        ),
    )
    cluster.kubectl("scale", "deployment", "web", "-n", namespace, "--replicas=1")
    eventually(lambda: used() == {"pods": "1", "requests.cpu": "100m"})


def test_a_definition_with_wrong_schema_is_refused(cluster: Cluster) -> None:
    refused = cluster.refused("create", "-f", "-", stdin=DEFINITION)
    where = "spec.versions[0].schema.openAPIV3Schema.properties[spec].properties"
    assert f'{where}[a].type: Unsupported value: "strin": supported values: "array", "boolean"' in refused
    assert f'{where}[b].pattern: Invalid value: "(": must be a valid regular expression, but isn\'t' in refused
