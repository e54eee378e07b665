"""Expressions with Kubernetes' functions: values, compile errors with their place, evaluation errors."""

import sys
from typing import Any

import pytest

from podwire.embedded.apiserver.cel import authorization, environment, sources
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
    "[5, 7].all(i, v, v > i) && {'a': 1}.exists(k, v, k == 'a' && v == 1)",
    "[5, 7].transformList(i, v, v * i) == [0, 7] && {'a': 1}.transformMap(k, v, v + 1) == {'a': 2}",
    "{'a': 1}.transformMapEntry(k, v, {v: k}) == {1: 'a'}",
    "[1, 2, 1].indexOf(1) == 0 && [1, 2, 1].lastIndexOf(1) == 2 && [1].indexOf('x') == -1",
    "string(ip('10.0.0.1')) == '10.0.0.1' && string(cidr('10.0.0.0/8')) == '10.0.0.0/8' && string(1) == '1'",
    "semver('v1.02', true) == semver('1.2.0') && isSemver('v1', true) && !isSemver('1.x', true)",
    "'key=(a), key=(b)'.findAll(r'key=\\((\\w)\\)') == ['key=(a)', 'key=(b)'] && 'ab'.find('[(]') == ''",
    "format.named('dns1123Label').value().validate('A').hasValue() && !format.named('other').hasValue()",
    "!format.dns1123Subdomain().validate('a.b').hasValue() && format.uuid().validate('x').value() == ['does not match "
    "the UUID format']",
    "format.date().validate('2026-02-30').hasValue() && !format.datetime().validate('2026-01-01T00:00:00Z').hasValue()",
    "'{format.named(1)}'.size() == 17 // format.named('x')",
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
        ("quantity('1').value", "ERROR: <input>:1:14: undefined field 'value'\n"),
        ("quantity('1') < quantity('2')", "found no matching overload for '_<_'"),
        ("semver('1.0.0').isLessThan(quantity('1'))", "applied to '(kubernetes.Semver, kubernetes.Quantity)'"),
        ("true), (true", "Syntax error"),
        ("authorizer.group('').check('get')", "undeclared reference to 'authorizer'"),
        ("format.dns1123().validate('a').hasValue()", "undeclared reference to 'format"),
        ("'a'.find('(') == ''", "ERROR: <input>:1:10: invalid regular expression: missing ): ("),
        ("true ||\n 'a'.matches(\"(?=a)\")", "ERROR: <input>:2:14: invalid regular expression: invalid perl operator"),
        (r"'a'.findAll(r'(a)\1', 2) == []", "invalid escape sequence"),
        ("size(self)", "must evaluate to bool but got int"),
        ("self.a", "must evaluate to bool but got dyn"),
    ],
)
def test_wrong_expression_does_not_compile(source: str, problem: str) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(source, VARIABLES, "bool")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("'a'.find(self.a[0] == 1 ? '(' : '') == ''", "invalid regular expression: ("),
        ("self.missing > 1", "no such key: missing"),
        ("self.n < 'x'", "no such overload: _<_(int64, string)"),
        ("1 / (self.n - 2) > 0", "division by zero"),
        ("quantity(self.text).sign() > 0", "quantities must match the regular expression"),
        ("self.text.matches(self.text + '[')", "invalid regular expression: missing ]: ["),
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


def test_search_takes_time_linear_in_the_text() -> None:
    assert compiled("('a' + self.text).find('(a+)+$') == ''", VARIABLES, "bool").evaluate(
        {"self": {"text": "a" * 5000 + "b"}, "names": []}
    )


def test_many_null_values_do_no_harm() -> None:
    expression = Expression("[null, {'a': null}, self]", {"self": "dyn"})
    before = sys.getrefcount(None)
    for _ in range(1000):
        assert expression.evaluate({"self": None}) == [None, {"a": None}, None]
    assert Expression("self", {"self": "dyn"}).evaluate({"self": None}) is None
    assert sys.getrefcount(None) >= before - 100


FIELDS = {"replicas": "int", "labels": "map(string,string)", "at": "timestamp", "any": "dyn", "a__dash__b": "string"}
SPEC = environment.MESSAGES.declare("spec", FIELDS)
OBJECT = environment.MESSAGES.declare("object", {"spec": SPEC, "specs": f"list({SPEC})"})


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("self.typo == 1", "ERROR: <input>:1:5: undefined field 'typo'\n | self.typo == 1\n | ....^"),
        ("has(self.spec.typo)", "<input>:1:4: undefined field 'typo'"),
        ("self.specs.all(s, s.typo == 1)", "<input>:1:20: undefined field 'typo'"),
        ("self.specs[0].typo == 1", "<input>:1:14: undefined field 'typo'"),
        ("self.?typo.hasValue()", "undefined field 'typo'"),
        ("true &&\n  self.typo", "<input>:2:7: undefined field 'typo'"),
        ("self.spec.replicas == 'x'", "found no matching overload for '_==_' applied to '(int, string)'"),
        ("self.spec > 1", "found no matching overload for '_>_' applied to '(spec, int)'"),
        ("self.spec.labels['a'] == 1", "applied to '(string, int)'"),
    ],
)
def test_wrong_field_does_not_compile(source: str, problem: str) -> None:
    with pytest.raises(CompileError) as caught:
        Expression(source, {"self": OBJECT})
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "source",
    ["self.spec.any.more[0] == 1", "self.spec.labels.a == 'x'", "self.spec.at.getFullYear() == 2026",
     "self.specs.map(s, s.labels) == []", "has(self.spec.a__dash__b)", "self.?spec.?labels['a'].orValue('') == ''"],
)  # fmt: skip
def test_known_fields_compile(source: str) -> None:
    assert Expression(source, {"self": OBJECT}).result == "bool"


def decide(check: dict[str, Any], verb: str) -> dict[str, Any]:
    shown = ["/".join(check.get(key, "") for key in ("path", "group", "resource", "subresource", "namespace", "name"))]
    return {"kind": "Decision", "allowed": verb == "get", "reason": f"{check['user']['username']} {verb} {shown[0]}"}


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("authorizer.group('').resource('pods').namespace('x').check('get').reason()", "ada get //pods//x/"),
        ("authorizer.group('apps').resource('deployments').subresource('scale').name('n').check('list').reason()",
         "ada list /apps/deployments/scale//n"),
        ("authorizer.path('/healthz').check('get').reason()", "ada get /healthz/////"),
        ("authorizer.serviceAccount('n', 's').group('').resource('pods').check('get').reason()",
         "system:serviceaccount:n:s get //pods///"),
        ("authorizer.requestResource.check('update').reason()", "ada update //configmaps///"),
        ("string(authorizer.path('/').check('get').allowed()) + authorizer.path('/').check('x').error()", "true"),
    ],
)  # fmt: skip
def test_authorizer_asks_step_by_step(source: str, want: str) -> None:
    value = authorization.authorizer({"username": "ada"}, {"group": "", "resource": "configmaps"})
    expression = Expression(source, {"authorizer": "kubernetes.authorization.Authorizer"})
    assert expression.evaluate({"authorizer": value}, decide) == want


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("Object{spec: Object.spec{replicas: 1 + 2}}", "{'spec': {'replicas': 1 + 2}}"),
        ("[JSONPatch{op: 'add', path: '/a{b: c}', value: {'x': y}}]",
         "[{'op': 'add', 'path': '/a{b: c}', 'value': {'x': y}}]"),
        ("has(a.b) ? {'k': T{?a: b ? c : d, e: [f]}} : {} // T{a: b}",
         "has(a.b) ? {'k': {?'a': b ? c : d, 'e': [f]}} : {} // T{a: b}"),
        ("x in {'a': 1}", "x in {'a': 1}"),
        ("format.named(f(x)).value().validate('a)')", "format.named(f(x))[?0].value().validate('a)')[?0]"),
    ],
)  # fmt: skip
def test_checked_text_is_made_runnable(source: str, want: str) -> None:
    assert sources.runnable(source) == want
