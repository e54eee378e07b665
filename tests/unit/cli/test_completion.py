"""What shells get to complete words: commands, options, clusters and nodes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from podwire.agent import config as agent_config
from podwire.cli import probe, state, why
from podwire.cli.main import root
from podwire.kube.config import PATIENCE_S
from podwire.local import inventory
from podwire.local.fabric import share
from podwire.local.probe.table import CHOICES
from podwire.proxy.registry import TRACERS

_HEAVY = ("podwire.kube.config", "podwire.local.config", "yaml", "asyncio")


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cluster ``podwire`` of two nodes and ``other`` of eleven."""
    monkeypatch.setattr(inventory, "RUN_ROOT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for name, nodes in (("podwire", 2), ("other", 11)):
        (tmp_path / name / "netns").mkdir(parents=True)
        (tmp_path / name / "layout.json").write_text(json.dumps({"state": str(tmp_path / "state" / name)}))
        for namespace in ("switch", "pod-1f", *(f"node-{n}" for n in range(1, nodes + 1))):
            (tmp_path / name / "netns" / namespace).touch()
    return tmp_path


def completed(*arguments: str) -> list[str]:
    """The words that complete the last of these."""
    *before, start = arguments
    result = ShellComplete(root, {}, "podwire", "_PODWIRE_COMPLETE").get_completions(before, start)
    return [item.value for item in result]


def test_commands_begin_as_typed(clusters: Path) -> None:
    assert completed("sta") == ["status", "state"]
    assert "--nodes" in completed("up", "--")


@pytest.mark.parametrize(
    "command", ["up", "down", "status", "kubeconfig", "probe", "exec", "state", "why", "conformance"]
)
def test_a_cluster_is_completed(clusters: Path, command: str) -> None:
    assert completed(command, "--name", "") == ["other", "podwire"]
    assert completed(command, "--name", "ot") == ["other"]


def test_nodes_are_of_the_named_cluster(clusters: Path) -> None:
    assert completed("exec", "") == ["node-1", "node-2", "switch"]
    assert completed("exec", "--name", "other", "node-1") == ["node-1", "node-10", "node-11"]
    assert completed("state", "") == ["node-1", "node-2", "switch", "host"]


def test_nodes_are_of_the_cluster_of_the_kubeconfig(clusters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(clusters / "state/other/credentials/admin.kubeconfig"))
    assert len(completed("exec", "node-")) == 11


def test_backends_are_completed() -> None:
    assert completed("up", "--backend", "vx") == ["vxlan"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    result = CliRunner().invoke(root, ["completion", shell])
    assert result.exit_code == 0, result.output
    assert "_PODWIRE_COMPLETE" in result.output and "podwire" in result.output


def test_another_shell_is_refused() -> None:
    result = CliRunner().invoke(root, ["completion", "tcsh"])
    assert result.exit_code == 2 and "'tcsh' is not one of 'bash', 'zsh', 'fish'" in result.output


@pytest.mark.parametrize(
    "arguments", ["exec node", "status --name p", "up --", "state no", "why --", "probe --", "p", "policy "]
)
def test_completing_imports_little(arguments: str) -> None:
    text = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('heavy', [n for n in {_HEAVY} if n in sys.modules], file=sys.stderr))\n"
        "from podwire.cli.main import root\n"
        "root.main([], prog_name='podwire')"
    )
    environment = {
        "_PODWIRE_COMPLETE": "bash_complete",
        "COMP_WORDS": f"podwire {arguments}",
        "COMP_CWORD": str(arguments.count(" ") + 1),
    }
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, check=False)
    assert done.stderr == "heavy []\n", done.stderr


def test_policy_completes_its_commands_and_the_options_of_list() -> None:
    assert completed("policy", "") == ["list", "counters", "log", "check", "diff"]
    assert completed("policy", "l") == ["list", "log"]
    assert "--namespace" in completed("policy", "--n")


def test_words_of_options_are_those_of_the_registries() -> None:
    assert (share.PART, *agent_config.PARTS, "dns") == state.PARTS
    assert tuple(TRACERS) == why.MODES
    assert tuple(CHOICES) == probe.SHOW
    why_help = CliRunner().invoke(root, ["why", "--help"]).output.replace("\n", " ")
    assert f"{PATIENCE_S:g}s until the answer begins" in " ".join(why_help.split())


def test_nodes_of_why_are_completed(clusters: Path) -> None:
    assert completed("why", "--node", "node-") == ["node-1", "node-2"]
