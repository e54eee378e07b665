"""Corefiles between releases of CoreDNS: what each release accepts, and the migrated file."""
