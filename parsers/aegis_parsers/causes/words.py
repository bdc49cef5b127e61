"""What a pattern cannot do without: for each of its alternatives, the longest word that every match contains.

`str.find` is far faster than `re`, so the slow engine asks a pattern only about lines that hold one of its words. Alternatives without a word of
three letters are asked about every line. Own reading of the small dialect that patterns.toml uses, not a parser of regular expressions.
"""

from __future__ import annotations

QUANTIFIERS = "?*{"
SPECIAL = ".^$+)]}"


def alternatives(pattern: str) -> list[str]:
    """The pattern split at the bars that are in no group and no class."""
    parts, depth, at, start, inside = [], 0, 0, 0, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        if inside:
            inside = char != "]"
        elif char == "[":
            inside = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            parts.append(pattern[start:at])
            start = at + 1
        at += 1
    return [*parts, pattern[start:]]


def word_of(alternative: str) -> str | None:
    """The longest word, in lower case, that stands in every match; None when there is none of three letters."""
    runs, run, at = [], "", 0
    while at < len(alternative):
        char = alternative[at]
        literal = ""
        if char == "\\":
            escaped = alternative[at + 1 : at + 2]
            literal, at = ("" if escaped.isalnum() else escaped), at + 2
        elif char == "{":
            at = alternative.index("}", at) + 1
        elif char in "([":
            at = end_of_group(alternative, at)
        else:
            literal, at = ("" if char in SPECIAL or char in QUANTIFIERS else char), at + 1
        following = alternative[at : at + 1]
        if literal and not (following and following in QUANTIFIERS):
            run += literal
        else:
            runs.append(run)
            run = ""
    best = max((*runs, run), key=len).lower()
    return best if len(best) >= 3 else None


def end_of_group(pattern: str, at: int) -> int:
    """Behind the bracket that closes the one at `at`."""
    opening = pattern[at]
    depth, inside = 0, opening == "["
    at += 1
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif inside:
            if char == "]":
                inside = False
                if opening == "[":
                    return at + 1
        elif char == "[":
            inside = True
        elif char == "(":
            depth += 1
        elif char == ")":
            if depth == 0:
                return at + 1
            depth -= 1
        at += 1
    return at
