"""The names that podwire puts on API objects stand in one module."""

import re
from pathlib import Path

from podwire.cluster import names

SOURCES = Path(names.__file__).parents[1]


def test_no_other_module_spells_a_name() -> None:
    """The version of an API group, ``podwire.io/v1alpha1``, is not such a name."""
    quoted = re.compile(rf'"{re.escape(names.PREFIX)}(?!v\d)')
    spelled = [str(path) for path in SOURCES.rglob("*.py") if quoted.search(path.read_text())]
    assert spelled == [names.__file__]


def test_names_begin_with_the_prefix_and_are_distinct() -> None:
    values = [value for name, value in vars(names).items() if name.isupper() and name != "PREFIX"]
    assert all(value.startswith(names.PREFIX) for value in values)
    assert len(set(values)) == len(values)
