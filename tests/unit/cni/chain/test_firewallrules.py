"""The rules of the plugin ``firewall`` as changes of a table."""

from podwire.cni.chain.firewallrules import FilterEdit, admit, dismiss, isolate, plain


def test_existing_chains_are_not_declared_again() -> None:
    edit = FilterEdit({"FORWARD": [], "CNI-FORWARD": [], "CNI-ADMIN": ["-j DROP"]})
    admit(edit, ["10.9.1.2"], "CNI-ADMIN")
    assert edit.lines == [
        '-I FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD',
        '-I CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN',
        "-A CNI-FORWARD -d 10.9.1.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A CNI-FORWARD -s 10.9.1.2/32 -j ACCEPT",
    ]


def test_rules_of_any_comment_are_not_repeated() -> None:
    chains = {
        "FORWARD": ['-m comment --comment "earlier \\"text\\"" -j CNI-ISOLATION-STAGE-1'],
        "CNI-ISOLATION-STAGE-1": [
            "-i br1 ! -o br1 -m comment --comment earlier -j CNI-ISOLATION-STAGE-2",
            "-m comment --comment earlier -j RETURN",
        ],
        "CNI-ISOLATION-STAGE-2": ["-o br1 -m comment --comment earlier -j DROP", "-j RETURN"],
    }
    edit = FilterEdit(chains)
    isolate(edit, "br1", "same-bridge")
    assert (edit.lines, edit.missing) == ([], [])
    isolate(edit, "br1", "isolated")
    assert [plain(line) for line in edit.lines] == ["-I CNI-ISOLATION-STAGE-1 -i br1 -o br1 -j DROP"]


def test_only_rules_of_the_address_are_deleted() -> None:
    chains = {"CNI-FORWARD": ["-s 10.9.1.2/32 -j ACCEPT", "-s 10.9.1.20/32 -j ACCEPT", "-s 10.9.1.2/32 -j DROP"]}
    edit = FilterEdit(chains)
    dismiss(edit, ["10.9.1.2", "10.9.1.3"])
    assert edit.lines == ["-D CNI-FORWARD -s 10.9.1.2/32 -j ACCEPT"]


def test_addresses_of_ipv6_are_whole_hosts() -> None:
    edit = FilterEdit({"CNI-FORWARD": [], "CNI-ADMIN": []})
    admit(edit, ["fd00:9::2"], "CNI-ADMIN")
    assert edit.lines[-1] == "-A CNI-FORWARD -s fd00:9::2/128 -j ACCEPT"
