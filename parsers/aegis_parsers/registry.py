"""Tool name -> parser, names as people write them, and finding the tool from the text.

`parse(tool, text)` never raises for any text: what a parser cannot read is in `unreadable`, and a defect of ours is too. It raises UnknownTool for
a name that is nobody's.
"""

from __future__ import annotations

import difflib
import re
from importlib import import_module
from typing import Any, NamedTuple

from .schema import Draft, Parsed

TEXT_LIMIT = 64 * 1024 * 1024
"""Characters read of one text; a longer one is cut and said to be."""
LINE_LIMIT = 4096
"""Characters read of one line."""
ESCAPE = re.compile(r"\x1b\[[0-?]{0,32}[ -/]{0,8}[@-~]")
"""What a terminal obeys (ECMA-48, control sequences)."""


class Parser(NamedTuple):
    """`read` fills a draft from the text; `looks` says whether the text is this tool's. They lie in `module`, with `suffix` behind their names,
    and are imported when asked: who reads one tool's output does not wait for all parsers. `lined`: by lines (JSON may be one long line).
    """

    module: str
    suffix: str = ""
    aliases: tuple[str, ...] = ()
    lined: bool = True

    def read(self, draft: Draft, text: str) -> None:
        self._of("read")(draft, text)

    def looks(self, text: str) -> bool:
        return bool(self._of("looks")(text))

    def _of(self, what: str) -> Any:
        return getattr(import_module(f".{self.module}", __package__), what + self.suffix)


class UnknownTool(ValueError):
    """No parser of that name; the message names the nearest."""


PARSERS: dict[str, Parser] = {
    "npu-smi": Parser("vendors.ascend"),
    "mx-smi": Parser("vendors.metax"),
    "cnmon": Parser("vendors.cambricon"),
    "amd-smi": Parser("vendors.amd", "_amd_smi", lined=False),
    "rocm-smi": Parser("vendors.amd", "_rocm_smi", lined=False),
    "nvidia-smi-table": Parser("nvidia.table"),
    "nvidia-smi-q": Parser("nvidia.query"),
    "nvidia-smi-nvlink": Parser("nvidia.nvlink", aliases=("nvlink",)),
    "nvidia-smi-csv": Parser("nvidia.csvrows", aliases=("nvidia-smi-query-gpu", "nvidia-smi-query-csv", "nvidia-smi-null-markers")),
    "nvidia-smi": Parser("nvidia.smi"),
    "fabricmanager": Parser("nvidia.fabricmanager", aliases=("fabric-manager", "nv-fabricmanager")),
    "ipmitool": Parser("ipmi", aliases=("ipmi",)),
    "lspci": Parser("lspci"),
    "ibstat": Parser("ib.local", "_ibstat"),
    "ibstatus": Parser("ib.local", "_ibstatus"),
    "ibv_devinfo": Parser("ib.local", "_devinfo", ("ibv-devinfo", "devinfo")),
    "ibdev2netdev": Parser("ib.local", "_ibdev2netdev"),
    "ibportstate": Parser("ib.local", "_ibportstate"),
    "rdma-link": Parser("ib.local", "_rdma_link", ("rdma",)),
    "sysfs": Parser("ib.sysfs", aliases=("sys-class-infiniband", "h100-sys-class-infiniband"), lined=False),
    "perfquery": Parser("ib.perfquery"),
    "ibqueryerrors": Parser("ib.queryerrors"),
    "iblinkinfo": Parser("ib.fabric", "_iblinkinfo"),
    "ibnetdiscover": Parser("ib.fabric", "_ibnetdiscover"),
    "dump_fts": Parser("ib.fabric", "_dump_fts", ("dump-fts", "ibroute")),
    "ibdiagnet": Parser("ib.ibdiagnet", aliases=("ibdiagnet2",)),
    "ibswinfo": Parser("ib.ibswinfo"),
    "mlxlink": Parser("ib.mlxlink", lined=False),
    "ncclras": Parser("ib.ncclras", lined=False),
    "ufm": Parser("ib.ufm", aliases=("ufm-events",)),
    "nccl-tests": Parser("nccl_tests", aliases=("all-reduce-perf",)),
    "smartctl": Parser("smartctl", aliases=("smart",), lined=False),
    "superbench": Parser("superbench", aliases=("sb",), lined=False),
    "dmesg": Parser("dmesg", aliases=("kernel", "syslog", "journal")),
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
    """Without what an editor, a terminal or another system put around a saved text: byte order mark, colours, line ends, blanks."""
    text = text.removeprefix("\ufeff")
    if "\x1b" in text:
        text = ESCAPE.sub("", text)
    return text.replace("\r\r\n", "\n").replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ").replace("\0", " ")


def parse(tool: str, text: str | bytes) -> Parsed:
    """Reads one tool's output; `tool` may be "auto". Bytes that are no UTF-8 are replaced, never refused.

    >>> parse("rdma-link", "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ib0").health
    'healthy'
    """
    if isinstance(text, bytes):
        text = text.decode("utf-16" if text.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8", "replace")
    holes, whole = "\0" in text.rstrip("\0\n"), len(text) <= TEXT_LIMIT
    text = plain(text[:TEXT_LIMIT])
    name = (detect(text) or "unknown") if tool == "auto" else resolve(tool)
    draft = Draft(name)
    if not whole:
        draft.unread(f"only the first {TEXT_LIMIT} characters were read")
    if holes:
        draft.unread("bytes of it are NUL: something is missing there")
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
