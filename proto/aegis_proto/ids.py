"""Names that become tokens of subjects: what is allowed, and how job and pod names are formed."""

from __future__ import annotations

import functools
import hashlib
import re

ID_PATTERN = r"[a-z0-9][a-z0-9-]{0,39}"
_ID = re.compile(ID_PATTERN + r"\Z")
_POD = re.compile(r"w(0|[1-9][0-9]{0,5})\Z")


def is_id(text: str) -> bool:
    """True for `[a-z0-9][a-z0-9-]{0,39}`: safe as a token of a subject and as a tag in a JWT."""
    return _ID.match(text) is not None


def nearest_id(text: str) -> str:
    """The allowed name nearest to `text`, for error messages (E110)."""
    cleaned = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:40].strip("-")
    return cleaned or "job"


def node_id(name: str) -> str:
    """What Aegis calls a machine that others call `name`: the same, with dots as hyphens."""
    return name if is_id(name) else nearest_id(name)


def check_id(what: str, text: str) -> str:
    """Return `text` if it is an id, else raise ValueError with the message of E110."""
    if not is_id(text):
        raise ValueError(f'E110 {what} "{text}": use a-z, 0-9 and -, at most 40. Nearest: {nearest_id(text)}')
    return text


def job_id(name: str, uid: str) -> str:
    """`<name>-<6 characters of the uid>`: unique per submission, at most 40 characters."""
    tail = hashlib.sha256(uid.encode()).hexdigest()[:6]
    return check_id("job name", f"{name[:33].rstrip('-')}-{tail}")


def pod_name(index: int) -> str:
    """`w<index>`: the place of a worker in its job, stable over re-placement."""
    return f"w{index}"


@functools.lru_cache(maxsize=1 << 14)
def pod_index(pod: str) -> int:
    """Inverse of `pod_name`; ValueError on anything else (no leading zeros, no sign)."""
    if _POD.match(pod) is None:
        raise ValueError(f"pod name {pod!r}: expected w0, w1, ...")
    return int(pod[1:])
