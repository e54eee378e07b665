"""``podwire upgrade rehearse``: the upgrade is tried in a local copy of the cluster before the real one."""
