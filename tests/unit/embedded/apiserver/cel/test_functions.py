"""Functions of Kubernetes, where no expression reaches an edge."""

from podwire.embedded.apiserver.cel.functions import FUNCTIONS, OPAQUE


def test_types_of_all_functions_are_known() -> None:
    scalars = {"bool", "int", "double", "string", "timestamp", "duration", "dyn"}
    for form in FUNCTIONS:
        for text in (*form.parameters, form.result):
            bare = text.removeprefix("optional(").removeprefix("list(").rstrip(")")
            assert bare in scalars | OPAQUE.keys() or text.startswith("map("), form.name
