"""`cnmon`: two lines per card between bars. Columns differ by version (an older one has Inited and Driver)."""

from __future__ import annotations

import re

from ..schema import Draft, Item, lines_of, number

BUS = r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d"
HEAD = re.compile(
    rf"^\|\s*(?P<card>\d{{1,4}})\s+(?:(?P<vf>/|\d+)\s+)?(?P<name>\S+)\s+(?P<firmware>\S+)\s*\|"
    rf"\s*(?:(?P<inited>\w+)\s+)?(?P<bus>{BUS}|N/A|v[\d.]+)\s*(?:\|\s*(?P<rest>[^|]*?)\s*)?\|?\s*$"
)
BODY = re.compile(
    r"^\|\s*(?P<fan>\d+%|N/A|ERR!?)\s+(?P<temp>-?\d+\s*C|N/A|ERR!?)\s+(?P<draw>\S+)(?:\s*W)?\s*/\s*(?P<cap>[^"
    r"|]*?)\s*\|\s*(?P<memory>[^|]*?)\s*\|(?P<rest>[^|]*)\|?\s*$"
)
FURNITURE = re.compile(r"^\s*$|^[|+=\-\s/]+$|Card\s+VF|Fan\s+Temp|CNMON|Process|PID|No running|Driver\s+v|^\w{3} \w{3} +\d+|Inited", re.IGNORECASE)
ERROR = re.compile(r"\bERR(?:OR)?\b!?", re.IGNORECASE)


def looks(text: str) -> bool:
    return bool(re.search(r"^\|[^\n]*\bMLU\d+|\bCNMON\b|^\|\s*Card\s+VF\s", text, re.M))


def read(draft: Draft, text: str) -> None:
    card: Item | None = None
    for line in lines_of(text):
        if match := HEAD.match(line):
            unfinished(draft, card)
            rest = (match["rest"] or "").split()
            card = draft.item(
                match["card"], "mlu", name=match["name"], firmware=match["firmware"], bus=match["bus"], util_percent=number(rest[0]) if rest else None
            )
            ecc = number(rest[-1]) if len(rest) > 1 else None
            card["ecc_errors"] = ecc
            if ecc:
                draft.finding("ecc_uncorrected", "warning", str(card["id"]), line)
            judge(draft, str(card["id"]), line)
        elif match := BODY.match(line):
            if card is None:
                draft.unread("a second line without its first", line)
                continue
            card |= {"temperature_c": number(match["temp"]), "power_w": number(match["draw"]), "memory": match["memory"]}
            judge(draft, str(card["id"]), line)
            card = None
        elif not FURNITURE.search(line):
            draft.unread("line not understood", line)
    unfinished(draft, card)


def judge(draft: Draft, item: str, line: str) -> None:
    if ERROR.search(line.replace("Ecc-Error", "")):
        draft.finding("mlu_error", "critical", item, line)


def unfinished(draft: Draft, card: Item | None) -> None:
    if card is not None:
        draft.unread(f"card {card['id']}: its second line is missing")
