"""``podwire upgrade apply``, ``rollback`` and ``status``: the steps of a plan, with gates, and their reverse."""
