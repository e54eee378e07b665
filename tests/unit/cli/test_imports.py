"""What commands import. A module takes about a millisecond of processor time, in each call of the command line."""

import subprocess
import sys

import pytest

_LOOP = ("asyncio", "ssl", "podwire.kube.client")
_PAGES = ("http.client", "email", "subprocess", "zipfile", "importlib.resources", "tempfile")
_CONFIGURATION = (
    "podwire.agent.config",
    "podwire.local.config",
    "podwire.local.supervisor",
    "podwire.embedded.apiserver.kinds",
)
_MODELS = ("podwire.model.gatewayapi", "podwire.model.workload", "podwire.model.metallb")

COMMANDS = {
    "version": (("cli.version",), 9, ("msgspec", "importlib.metadata", "yaml", *_LOOP, *_PAGES, *_CONFIGURATION)),
    "kubeconfig": (
        ("cli.kubeconfig", "local.credentials", "local.kubeconfigs"),
        20,
        ("yaml", "cryptography", *_LOOP, *_PAGES, *_CONFIGURATION),
    ),
    "list": (("cli.cluster", "local.briefs"), 32, (*_LOOP, *_PAGES, *_CONFIGURATION)),
    "down": (("cli.cluster", "local.kubeconfigs", "local.teardown"), 72, ("yaml", *_LOOP, *_PAGES, *_CONFIGURATION)),
    "status": (("cli.cluster", "local.overview"), 60, ("http.client", "zipfile", *_CONFIGURATION, *_MODELS)),
    "probe": (
        ("cli.probe", "local.probe.session", "local.probe.table"),
        92,
        ("http.client", "podwire.why.explain", "podwire.kernel.nft", *_CONFIGURATION, *_MODELS),
    ),
    "state": (
        ("cli.state", "cli.state_document"),
        80,
        ("yaml", "podwire.kernel.kinds", *_LOOP, *_PAGES, *_CONFIGURATION),
    ),
    "why": (
        ("cli.why", "cli.why_answer", "why.answer_text"),
        295,
        ("http.client", "re2", "podwire.why.gateway.explain", "podwire.why.dns.question", "podwire.local.config"),
    ),
    "policy list": (("cli.policy", "cli.policy_list"), 82, ("http.client", *_CONFIGURATION, *_MODELS)),
    "policy check": (("cli.policy", "cli.policy_check"), 88, ("http.client", *_CONFIGURATION, *_MODELS)),
    "bgp": (("cli.bgp", "cli.bgp_sessions"), 22, ("yaml", *_LOOP, *_PAGES, *_CONFIGURATION)),
    "up of a running cluster": (
        ("cli.up", "local.bring_up", "local.manifests", "local.builds", "local.config"),
        158,
        ("http.client", "zipfile", "podwire.local.supervisor", "podwire.agent.config", "podwire.kernel.nft"),
    ),
}
"""By the command: the modules that it imports when it runs, the most modules of podwire, and modules that it has no use
for."""


def imported(modules: tuple[str, ...]) -> set[str]:
    """What a process has imported that runs the command line with these modules of podwire."""
    names = ", ".join(f"podwire.{module}" for module in ("cli.main", *modules))
    program = f"import {names}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_imports_only_what_it_uses(command: str) -> None:
    modules, most, useless = COMMANDS[command]
    loaded = imported(modules)
    assert not loaded & set(useless)
    own = sorted(name for name in loaded if name.startswith("podwire."))
    assert len(own) <= most, own
