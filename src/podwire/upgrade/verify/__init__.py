"""``podwire upgrade verify``: connections of every kind from every node, tried by short pods."""
