"""What happens to a build, as lines that a person reads and a script can grep.

One line is one event: `event=<kind>` and fields `name=value`, values with spaces in quotes. The
kinds and their fields are a promise (configs/clusters/README.md lists them). An event is text, so
that whoever shows messages shows it; who counts events looks at its kind.
"""

import json
import re

# Everything that a build can say has happened, beside its progress and plain messages.
KINDS = (
    "retry",
    "split",
    "timeout",
    "straggler",
    "worker_lost",
    "worker_joined",
    "worker_given_up",
    "document_failed",
    "conflict",
)
_PLAIN = re.compile(r"[^\s\"'=\\]+\Z")


class BuildEvent(str):
    """One event of a build as its line; `kind` is one of `KINDS`."""

    kind: str

    def __new__(cls, kind: str, **fields: object) -> "BuildEvent":
        """Spell the line; a field that is None is left out."""
        event = super().__new__(cls, spell(kind, **fields))
        event.kind = kind
        return event


def spell(event: str, /, **fields: object) -> str:
    """Return `event=<event> name=value …` on one line."""
    said = {name: value for name, value in fields.items() if value is not None}
    return " ".join(f"{name}={_value(value)}" for name, value in {"event": event, **said}.items())


def _value(value: object) -> str:
    text = str(value)
    return text if _PLAIN.match(text) else json.dumps(text, ensure_ascii=False)
