"""A pattern with gaps, so that a search costs time by the length of the line, whatever the line holds.

`a.*b` is tried by `re` from each `a` to the end of the line: the square of the length where a line repeats `a`, the cube with two gaps. Where
there is a match at all there is one that begins with the first `a` and takes the first of each following part: that one alone is tried. Gaps stand
outside of groups, in an alternative without `^`; own reading of the small dialect that patterns.toml uses.
"""

from __future__ import annotations

from .words import alternatives, end_of_group

GAP = ".*"


def linear(pattern: str) -> str:
    """The same lines, found in one way. ValueError for a gap where this module cannot see it.

    >>> linear("x|a.*b")
    'x|^(?>(?s:.*?)a)(?>.*?b)'
    """
    flag = "(?i)" if pattern.startswith("(?i)") else ""
    return flag + "|".join(_in_one_way(alternative) for alternative in alternatives(pattern.removeprefix(flag)))


def _in_one_way(alternative: str) -> str:
    first, *rest = _parts(alternative)
    if not rest:
        return first
    if "^" in alternative.replace("[^", ""):
        raise ValueError(f"{alternative}: a gap in an anchored alternative")
    return f"^(?>(?s:.*?){first}){''.join(f'(?>.*?{part})' for part in rest)}"


def _parts(alternative: str) -> list[str]:
    """What stands between the gaps."""
    parts, at, start = [], 0, 0
    while at < len(alternative):
        if alternative.startswith(GAP, at):
            parts.append(alternative[start:at])
            at = start = at + len(GAP)
        elif alternative[at] in "([":
            end = end_of_group(alternative, at)
            if alternative[at] == "(" and GAP in alternative[at:end].replace(r"\.*", ""):
                raise ValueError(f"{alternative}: a gap inside of a group")
            at = end
        else:
            at += 2 if alternative[at] == "\\" else 1
    return [*parts, alternative[start:]]
