"""The placeholders and classes of lines of the query log: those of CoreDNS' plugin ``log``. Pure."""

JSON = "json"
COMMON = (
    '{remote}:{port} - {>id} "{type} {class} {name} {proto} {size} {>do} {>bufsize}" '
    "{rcode} {>rflags} {rsize} {duration}"
)
COMBINED = f'{COMMON} "{{>opcode}}"'
CLASSES = ("success", "denial", "error")
PLACEHOLDERS = (
    "remote", "port", ">id", "type", "class", "name", "proto", "size", ">do", ">bufsize", ">opcode", "rcode", ">rflags",
    "rsize", "duration", "local",
)  # fmt: skip
