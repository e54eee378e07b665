"""Answers of the zone in the kernel: the entries of the BPF program ``dns_answers``, and the tables that hold them."""
