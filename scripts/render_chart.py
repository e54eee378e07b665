"""Makes what follows from the Helm chart's values: their schema, their table in the docs, CRDs, plain manifests.

Usage: ``python scripts/render_chart.py [--check]``. ``--check`` writes nothing, names each file that is out of date and
exits with 1. Helm is taken from ``PATH`` or from the virtual environment.

Sources: ``deploy/helm/podwire/values.yaml`` (a comment ``# -- TEXT`` above a key describes it),
``src/podwire/local/addons`` (the CRDs, which local clusters have too) and ``deploy/values`` (a manifest each).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy/helm/podwire"
ADDONS = ROOT / "src/podwire/local/addons"
PAGE = ROOT / "docs/install.md"
CRDS = (
    "bgp.yaml", "clusternetworkpolicy.yaml", "egresspolicy.yaml", "ipamblock.yaml", "ippool.yaml", "metallb.yaml",
)  # fmt: skip
BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"
ENUMS: Mapping[str, list[str]] = {
    "image.pullPolicy": ["Always", "IfNotPresent", "Never"],
    "agent.logLevel": ["debug", "info", "warning", "error"],
    "controller.logLevel": ["debug", "info", "warning", "error"],
    "gateway.exposure": ["loadBalancer", "nodePort", "hostPort", "hostNetwork"],
    "gateway.externalTrafficPolicy": ["Cluster", "Local"],
    "agent.parts[]": ["cni", "routing", "policy", "proxy", "loadbalancer"],
    "controller.parts[]": [
        "nodeipam", "endpointslice", "endpointslicemirroring", "service", "loadbalancer", "ipamblocks", "policystatus",
        "egress",
        "cloudaddresses", "cloudroutes",
    ],
}  # fmt: skip
"""The values that a field may have, by its path."""
OPEN = {
    "settings", "agent.config", "agent.securityContext", "agent.resources", "agent.nodeSelector",
    "agent.podAnnotations", "controller.config", "controller.securityContext", "controller.resources",
    "controller.nodeSelector", "dns.config", "dns.securityContext", "dns.resources", "dns.nodeSelector",
    "serviceMonitor.labels", "gateway.settings", "gateway.config", "gateway.serviceAnnotations",
    "gateway.securityContext", "gateway.resources", "gateway.engineResources", "gateway.nodeSelector",
    "gateway.podAnnotations",
}  # fmt: skip
"""Objects with keys that the chart does not know."""
OBJECTS = {"agent.tolerations", "controller.tolerations", "dns.tolerations", "gateway.tolerations"}
"""Lists of objects; other lists have texts."""
PORTS = {"api.port", "agent.healthPort", "gateway.ports.http", "gateway.ports.https"}
_KEY = re.compile(r"^( *)([A-Za-z]+):")


def descriptions(text: str) -> dict[str, str]:
    """The comments ``# -- TEXT`` of a values file by the path of their key.

    Raises: ValueError for a comment without a key.
    """
    result: dict[str, str] = {}
    path: list[str] = []
    comment = ""
    for line in text.splitlines():
        if "# -- " in line:
            comment = line.partition("# -- ")[2].strip()
        elif match := _KEY.match(line):
            path = [*path[: len(match[1]) // 2], match[2]]
            if comment:
                result[".".join(path)] = comment
            comment = ""
        elif comment and line.strip():
            raise ValueError(f"no key follows the comment {comment!r}")
    return result


def schema(value: Any, path: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """The JSON Schema of a value with this default."""
    result: dict[str, Any] = {"description": texts[path]} if path in texts else {}
    match value:
        case dict() if path in OPEN:
            return {**result, "type": "object"}
        case dict():
            properties = {key: schema(inner, f"{path}.{key}".lstrip("."), texts) for key, inner in value.items()}
            return {**result, "type": "object", "additionalProperties": False, "properties": properties}
        case list():
            items: dict[str, Any] = {"type": "object" if path in OBJECTS else "string"}
            return {**result, "type": "array", "items": items | _enum(f"{path}[]")}
        case bool():
            return {**result, "type": "boolean"}
        case int():
            limits = {"minimum": 1, "maximum": 65535} if path in PORTS else {"minimum": 0}
            return {**result, "type": "integer", **limits}
    return {**result, "type": "string"} | _enum(path)


def _enum(path: str) -> dict[str, Any]:
    return {"enum": ENUMS[path]} if path in ENUMS else {}


def _root_schema(values: dict[str, Any], texts: Mapping[str, str]) -> str:
    root = {"$schema": "http://json-schema.org/draft-07/schema#", **schema(values, "", texts)}
    root["properties"]["global"] = {"description": "Values of a chart that has this one as a part.", "type": "object"}
    return json.dumps(root, indent=2) + "\n"


def _rows(values: Mapping[str, Any], texts: Mapping[str, str], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and path not in OPEN:
            yield from _rows(value, texts, f"{path}.")
        else:
            yield f"| `{path}` | `{json.dumps(value)}` | {texts[path]} |"


def table(values: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    """The table of all values for the docs.

    Raises: KeyError for a value without a comment.
    """
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *_rows(values, texts)])


def manifest(values: Path) -> str:
    """The objects of the chart with a file of values, CRDs first."""
    helm = shutil.which("helm", path=f"{os.environ['PATH']}:{ROOT / '.venv/bin'}")
    if helm is None:
        raise SystemExit("render_chart.py: helm is missing; run make setup")
    command = [helm, "template", "podwire", str(CHART), "--namespace", "kube-system", "--include-crds"]
    done = subprocess.run([*command, "--values", str(values)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"render_chart.py: {values.name}: {done.stderr.strip()}")
    text = done.stdout.replace("app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kubectl")
    head = values.read_text(encoding="utf-8").splitlines()[0]
    return f"{head}\n# Made from deploy/helm/podwire by scripts/render_chart.py.\n{text}"


def rendered() -> Iterator[tuple[Path, str]]:
    """What every file should hold; the manifests come last, since Helm reads the other files for them."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    values, texts = yaml.load(text, Loader=yaml.CSafeLoader), descriptions(text)
    yield CHART / "values.schema.json", _root_schema(values, texts)
    for name in CRDS:
        yield CHART / "crds" / name, (ADDONS / name).read_text(encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    yield PAGE, f"{before}{BEGIN}\n{table(values, texts)}\n{END}{rest.partition(END)[2]}"
    for file in sorted((ROOT / "deploy/values").glob("*.yaml")):
        yield ROOT / "deploy/manifests" / file.name, manifest(file)


def main(arguments: list[str]) -> int:
    """Writes the files, or checks them; the exit status."""
    stale = []
    for path, text in rendered():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if "--check" not in arguments:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if "--check" not in arguments:
        return 0
    for path in stale:
        print(f"{path.relative_to(ROOT)} is out of date; run python scripts/render_chart.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
