"""Tool name -> parser, names as people write them, and finding the tool from the text.

`parse(tool, text)` never raises for any text: what a parser cannot read is in `unreadable`, and a defect of ours is too. It raises UnknownTool for
a name that is nobody's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import NamedTuple

from . import dmesg, ipmi, lspci, nccl_tests, smartctl, superbench
from .ib import fabric, ibdiagnet, ibswinfo, local, mlxlink, ncclras, perfquery, queryerrors, sysfs, ufm
from .nvidia import csvrows, fabricmanager, nvlink, query, smi, table
from .schema import Draft, Parsed
from .vendors import amd, ascend, cambricon, metax

TEXT_LIMIT = 64 * 1024 * 1024
"""Characters read of one text; a longer one is cut and said to be."""
LINE_LIMIT = 4096
"""Characters read of one line."""
ESCAPE = re.compile(r"\x1b\[[0-?]{0,32}[ -/]{0,8}[@-~]")
"""What a terminal obeys (ECMA-48, control sequences)."""


class Parser(NamedTuple):
    """`read` fills a draft from the text; `looks` says whether the text is this tool's; `lined`: by lines (JSON may be one long line)."""

    read: Callable[[Draft, str], None]
    looks: Callable[[str], bool]
    aliases: tuple[str, ...] = ()
    lined: bool = True


class UnknownTool(ValueError):
    """No parser of that name; the message names the nearest."""


PARSERS: dict[str, Parser] = {
    "npu-smi": Parser(ascend.read, ascend.looks),
    "mx-smi": Parser(metax.read, metax.looks),
    "cnmon": Parser(cambricon.read, cambricon.looks),
    "amd-smi": Parser(amd.read_amd_smi, amd.looks_amd_smi, lined=False),
    "rocm-smi": Parser(amd.read_rocm_smi, amd.looks_rocm_smi, lined=False),
    "nvidia-smi-table": Parser(table.read, table.looks),
    "nvidia-smi-q": Parser(query.read, query.looks),
    "nvidia-smi-nvlink": Parser(nvlink.read, nvlink.looks, ("nvlink",)),
    "nvidia-smi-csv": Parser(csvrows.read, csvrows.looks, ("nvidia-smi-query-gpu", "nvidia-smi-query-csv", "nvidia-smi-null-markers")),
    "nvidia-smi": Parser(smi.read, smi.looks),
    "fabricmanager": Parser(fabricmanager.read, fabricmanager.looks, ("fabric-manager", "nv-fabricmanager")),
    "ipmitool": Parser(ipmi.read, ipmi.looks, ("ipmi",)),
    "lspci": Parser(lspci.read, lspci.looks),
    "ibstat": Parser(local.read_ibstat, local.looks_ibstat),
    "ibstatus": Parser(local.read_ibstatus, local.looks_ibstatus),
    "ibv_devinfo": Parser(local.read_devinfo, local.looks_devinfo, ("ibv-devinfo", "devinfo")),
    "ibdev2netdev": Parser(local.read_ibdev2netdev, local.looks_ibdev2netdev),
    "ibportstate": Parser(local.read_ibportstate, local.looks_ibportstate),
    "rdma-link": Parser(local.read_rdma_link, local.looks_rdma_link, ("rdma",)),
    "sysfs": Parser(sysfs.read, sysfs.looks, ("sys-class-infiniband", "h100-sys-class-infiniband"), lined=False),
    "perfquery": Parser(perfquery.read, perfquery.looks),
    "ibqueryerrors": Parser(queryerrors.read, queryerrors.looks),
    "iblinkinfo": Parser(fabric.read_iblinkinfo, fabric.looks_iblinkinfo),
    "ibnetdiscover": Parser(fabric.read_ibnetdiscover, fabric.looks_ibnetdiscover),
    "dump_fts": Parser(fabric.read_dump_fts, fabric.looks_dump_fts, ("dump-fts", "ibroute")),
    "ibdiagnet": Parser(ibdiagnet.read, ibdiagnet.looks, ("ibdiagnet2",)),
    "ibswinfo": Parser(ibswinfo.read, ibswinfo.looks),
    "mlxlink": Parser(mlxlink.read, mlxlink.looks, lined=False),
    "ncclras": Parser(ncclras.read, ncclras.looks, lined=False),
    "ufm": Parser(ufm.read, ufm.looks, ("ufm-events",)),
    "nccl-tests": Parser(nccl_tests.read, nccl_tests.looks, ("all-reduce-perf",)),
    "smartctl": Parser(smartctl.read, smartctl.looks, ("smart",), lined=False),
    "superbench": Parser(superbench.read, superbench.looks, ("sb",), lined=False),
    "dmesg": Parser(dmesg.read, dmesg.looks, ("kernel", "syslog", "journal")),
}
_NAMES = {alias: tool for tool, parser in PARSERS.items() for alias in (tool.replace("_", "-"), *parser.aliases)}


def resolve(name: str) -> str:
    """The tool of a name: exact, an alias, or the longest one the name begins with ("ibstat-old" is ibstat)."""
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    found = max(
        (known for known in _NAMES if plain == known or plain.startswith(known + "-") or plain.startswith(known + ".")), key=len, default=None
    )
    if found is None:
        near = difflib.get_close_matches(plain, _NAMES, n=1)
        hint = f"; did you mean {_NAMES[near[0]]}?" if near else f"; known: {', '.join(PARSERS)}"
        raise UnknownTool(f"no parser for {name!r}{hint}")
    return _NAMES[found]


def detect(text: str) -> str | None:
    """The tool whose output this looks like."""
    head = text[:200_000]
    return next((tool for tool, parser in PARSERS.items() if parser.looks(head)), None)


def plain(text: str) -> str:
    """Without what an editor, a terminal or another system put around a saved text: byte order mark, colours, carriage returns."""
    text = text.removeprefix("\ufeff")
    if "\x1b" in text:
        text = ESCAPE.sub("", text)
    return text.replace("\r\r\n", "\n").replace("\r\n", "\n")


def parse(tool: str, text: str | bytes) -> Parsed:
    """Reads one tool's output; `tool` may be "auto". Bytes that are no UTF-8 are replaced, never refused.

    >>> parse("rdma-link", "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ib0").health
    'healthy'
    """
    if isinstance(text, bytes):
        text = text.decode("utf-16" if text.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8", "replace")
    text, whole = plain(text[:TEXT_LIMIT]), len(text) <= TEXT_LIMIT
    name = (detect(text) or "unknown") if tool == "auto" else resolve(tool)
    draft = Draft(name)
    if not whole:
        draft.unread(f"only the first {TEXT_LIMIT} characters were read")
    if not text.strip():
        draft.unread("the output is empty")
        return draft.done()
    if name == "unknown":
        draft.unread("no tool's output was recognised")
        return draft.done()
    lines = text.split("\n")
    if PARSERS[name].lined and any(len(line) > LINE_LIMIT for line in lines):
        draft.unread(f"a line longer than {LINE_LIMIT} characters was cut")
        text = "\n".join(line[:LINE_LIMIT] for line in lines)
    try:
        PARSERS[name].read(draft, text)
    except Exception as error:  # a defect of ours must not take the agent down, and must not look healthy
        draft.unread(f"parser failed: {type(error).__name__}", str(error))
    return draft.done()
