"""Expressions with Kubernetes' functions: values, compile errors with their place, evaluation errors."""

from typing import Any

import pytest

from podwire.embedded.apiserver.cel.expressions import CompileError, EvaluationError, Expression, compiled

VARIABLES = {"self": "dyn", "names": "list(string)"}

TRUE = (
    "self.a.all(x, x > 0)",
    "has(self.a) && !has(self.missing)",
    "self.?missing.orValue(3) == 3",
    "self.a.size() == 2 && self.n == 2",
    "self.text.matches('^a.c$')",
    "'a,b'.split(',') == ['a', 'b'] && ['a', 'b'].join('-') == 'a-b'",
    "'%s has %d'.format(['x', 2]) == 'x has 2'",
    "'Abc'.lowerAscii() == 'abc' && ' x '.trim() == 'x' && 'abc'.substring(1) == 'bc'",
    "quantity('1Gi').isGreaterThan(quantity('1000Mi'))",
    "quantity('1') == quantity('1000m') && quantity('1').compareTo(quantity('2')) == -1",
    "quantity('1').add(quantity('500m')) == quantity('1500m') && quantity('3').sub(1).asInteger() == 2",
    "isQuantity('1k') && !isQuantity('1x') && quantity('-1').sign() == -1 && !quantity('1m').isInteger()",
    "quantity('1500m').asApproximateFloat() == 1.5",
    "semver('1.10.0').isGreaterThan(semver('1.9.0')) && semver('1.0.0-rc.1').isLessThan(semver('1.0.0'))",
    "isSemver('1.2.3') && !isSemver('1.2') && semver('1.2.3').minor() == 2",
    "isIP('10.0.0.1') && !isIP('10.0.0.256') && ip('fd00::1').family() == 6",
    "ip.isCanonical('fd00::1') && !ip.isCanonical('fd00:0::1')",
    "ip('127.0.0.1').isLoopback() && ip('10.0.0.1').isGlobalUnicast()",
    "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsIP(ip('10.1.2.3'))",
    "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.0.0.0/8').containsCIDR('fd00::/64')",
    "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.0.0.0/8').prefixLength() == 8",
    "isCIDR('fd00::/64') && !isCIDR('10.0.0.1') && cidr('10.0.0.1/8').ip() == ip('10.0.0.1')",
    "isURL('https://a.example:80/x?y=1') && !isURL('a.example')",
    "url('https://u@a.example:80/x?y=1').getHost() == 'a.example:80' && url('https://a/x').getScheme() == 'https'",
    "url('https://a.example:80/x?y=1').getPort() == '80' && url('https://a/x?y=1').getQuery() == {'y': ['1']}",
    "[3, 1, 2].min() == 1 && ['a', 'b'].max() == 'b' && [1.5, 2.0].sum() == 3.5 && [1, 2].isSorted()",
    "self.a.sum() == 3 && 'abc'.indexOf('b') == 1",
    "'abc 123'.find('[0-9]+') == '123' && 'a1b2'.findAll('[0-9]') == ['1', '2']",
    "'a1b2'.findAll('[0-9]', 1) == ['1']",
    "sets.contains([1, 2], [1]) && sets.intersects(names, ['x']) && sets.equivalent(['x', 'y', 'x'], names)",
    "optional.of(1).optMap(v, v + 1).value() == 2",
    "duration('1h') > duration('59m') && timestamp('2026-01-01T00:00:00Z').getFullYear() == 2026",
    "cel.bind(half, self.n / 2, half == 1) && base64.decode('YQ==') == b'a' && math.greatest(1, 2) == 2",
    "self['dashed-name'] == true",
)  # fmt: skip
VALUES: dict[str, Any] = {
    "self": {"a": [1, 2], "n": 2, "text": "abc", "dashed-name": True},
    "names": ["x", "y"],
}


@pytest.mark.parametrize("source", TRUE)
def test_expression_is_true(source: str) -> None:
    assert compiled(source, VARIABLES, "bool").evaluate(VALUES) is True


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("1 +", "ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>'"),
        ("nobody", "ERROR: <input>:1:1: undeclared reference to 'nobody' (in container '')\n | nobody\n | ^"),
        ("1 + 'a'", "ERROR: <input>:1:3: found no matching overload for '_+_' applied to '(int, string)'"),
        ("quantity('1').value", "expression of type 'kubernetes.Quantity' cannot be the operand of a select"),
        ("quantity('1') < quantity('2')", "found no matching overload for '_<_'"),
        ("semver('1.0.0').isLessThan(quantity('1'))", "applied to '(kubernetes.Semver, kubernetes.Quantity)'"),
        ("[1, 2].all(i, v, v > i)", "undeclared reference to 'i'"),
        ("format.dns1123Label()", "undeclared reference to 'format"),
        ("size(self)", "must evaluate to bool"),
    ],
)
def test_wrong_expression_does_not_compile(source: str, problem: str) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(source, VARIABLES, "bool")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("self.missing > 1", "no such key: missing"),
        ("self.n < 'x'", "no such overload: _<_(int64, string)"),
        ("1 / (self.n - 2) > 0", "division by zero"),
        ("quantity(self.text).sign() > 0", "quantities must match the regular expression"),
        ("self.text.matches('[')", "invalid regular expression: missing ]: ["),
        ("[].min() == 1", "min called on empty list"),
    ],
)
def test_expression_without_value_is_an_error(source: str, problem: str) -> None:
    expression = Expression(source, VARIABLES)
    with pytest.raises(EvaluationError) as caught:
        expression.evaluate(VALUES)
    assert problem in str(caught.value)


def test_long_evaluation_is_stopped() -> None:
    expression = Expression("self.exists(x, self.exists(y, x + y < 0))", VARIABLES)
    with pytest.raises(EvaluationError, match="Iteration budget exceeded"):
        expression.evaluate({"self": list(range(300)), "names": []})


def test_optional_variable_may_be_absent() -> None:
    expression = Expression("old.orValue(1) == 1", {"old": "int"}, "old")
    assert expression.evaluate({}) is True
    assert expression.evaluate({"old": 2}) is False


def test_error_in_optional_expression_has_its_own_place() -> None:
    with pytest.raises(CompileError, match=r"<input>:1:20: undeclared reference to 'x'"):
        Expression("old.hasValue() && (x)", {"old": "int"}, "old")
