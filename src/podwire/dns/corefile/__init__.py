"""CoreDNS' configuration file: its syntax, and what podwire does with each plugin."""
