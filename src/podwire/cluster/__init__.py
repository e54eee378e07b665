"""Facts of a cluster that several parts need, derived from API objects."""
