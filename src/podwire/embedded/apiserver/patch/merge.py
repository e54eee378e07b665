"""JSON merge patch: RFC 7386, section 2.

An object in the patch merges into the object in the document, ``null`` removes, anything else replaces.
Cost grows with the patch: what the patch does not name is shared with the old document, not copied.
"""

from typing import Any


def apply(doc: Any, patch: Any) -> Any:
    """The patched document; ``doc`` is left as it was."""
    if not isinstance(patch, dict):
        return patch
    out = dict(doc) if isinstance(doc, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = apply(out.get(key), value)
    return out
