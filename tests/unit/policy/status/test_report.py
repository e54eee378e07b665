"""A node's report of the policies that are in force there."""

from podwire.policy.status.report import COMMITS, Commit, EnforcedPolicies, name_of, parse, render

REPORT = EnforcedPolicies(
    "node-1", {"NetworkPolicy": (Commit("aa", 1_700_000_000_123, 7.5), Commit("bb", 1_700_000_001_000, 12))}
)


def test_it_reads_back() -> None:
    data = render(REPORT)
    assert data == {
        "node": "node-1",
        "problem": "",
        "NetworkPolicy": "aa 1700000000123 7.5\nbb 1700000001000 12.0",
        "ClusterNetworkPolicy": "",
    }
    result = parse(data)
    assert result.node == "node-1"
    assert result.commits == {**REPORT.commits, "ClusterNetworkPolicy": ()}


def test_lines_that_are_none_are_left_out() -> None:
    result = parse({"node": "n", "problem": "the kernel said no", "NetworkPolicy": "aa\nbb x 1\ncc 1 2\n\n"})
    assert result.commits["NetworkPolicy"] == (Commit("cc", 1, 2),)
    assert result.problem == "the kernel said no"
    assert parse({}) == EnforcedPolicies("", {"NetworkPolicy": (), "ClusterNetworkPolicy": ()})


def test_its_size_is_bounded() -> None:
    many = tuple(Commit(f"{number:016x}", number, 1) for number in range(100))
    data = render(EnforcedPolicies("n", {"NetworkPolicy": many}, "x" * 5000))
    assert len(data["NetworkPolicy"].splitlines()) == COMMITS
    assert data["NetworkPolicy"].endswith(f"{99:016x} 99 1.0")
    assert len(data["problem"]) == 300


def test_names_of_objects_fit() -> None:
    assert name_of("node-1") == "podwire-policies-node-1"
    long = [name_of("n" * 250 + end) for end in ("a", "b")]
    assert long[0] != long[1] and all(len(name) == 253 for name in long)
