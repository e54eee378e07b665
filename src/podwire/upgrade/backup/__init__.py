"""``podwire upgrade backup`` and ``restore``: the objects and nodes of a network as files, and back."""
