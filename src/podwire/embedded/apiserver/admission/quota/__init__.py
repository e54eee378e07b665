"""ResourceQuota: what objects use, which objects a quota counts, and the refusal of what exceeds a quota."""
