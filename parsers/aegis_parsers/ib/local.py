"""What one host says of its ports: ibstat, ibstatus, ibv_devinfo, ibdev2netdev, ibportstate, rdma link.

A port that polls has no cable or no peer. A port that is disabled was switched off. Down with the physical link up and LID 65535 is a function
without a subnet manager, not a cable. Ethernet ports may be unused: they are listed, not judged. Rates are facts; what is expected is the reader's.
"""

from __future__ import annotations

import itertools
import re

from ..schema import Draft, Item, Value, bare_lines_of, number

KEY = re.compile(r"^(?P<key>[A-Za-z_][\w ./-]*?)\s*:[. \t]*(?P<value>.*?)\s*$")


def judge_port(draft: Draft, port: Item, evidence: str) -> None:
    """Findings of one port by its `state`, `phys_state`, `lid` and `link_layer`, whatever tool told them."""
    item = str(port["id"])
    state, phys = (str(port.get(key) or "").lower().replace("_", "").replace(" ", "") for key in ("state", "phys_state"))
    ethernet = str(port.get("link_layer") or "").lower() == "ethernet"
    state, phys = (re.sub(r"^\d+:|^port|\(\d+\)$", "", word) for word in (state, phys))
    if not state and not phys:
        draft.unread(f"port {item}: no state", evidence)
    elif state == "active" or (not state and phys == "linkup"):
        return
    elif phys == "disabled":
        draft.finding("ib_port_disabled", "info", item, evidence)
    elif ethernet:
        draft.finding("eth_port_down", "info", item, evidence)
    elif phys == "linkup" and state in ("down", "init", "initializing", "initialize"):
        virtual = state == "down" and port.get("lid") in (65535, 0)
        draft.finding("ib_no_subnet_manager", "info" if virtual else "warning", item, evidence)
    elif state == "armed":
        draft.finding("ib_port_not_active", "warning", item, evidence)
    elif "down" in state or phys in ("polling", "sleep", "linkerrorrecovery", "phytest", "portconfigurationtraining", "training"):
        draft.finding("ib_port_down", "warning", item, evidence)
    elif state:
        draft.unread(f"port {item}: state not understood", evidence)


def looks_ibstat(text: str) -> bool:
    return bool(re.search(r"^CA:? '[^']*'\s*$|^\s+Physical state:\s", text, re.M))


def read_ibstat(draft: Draft, text: str) -> None:
    device, port, fields = "", "", dict[str, str]()

    def close() -> None:
        if port:
            close_port(draft, f"{device or '?'}/{port}", fields, {"State": "state", "Physical state": "phys_state"})

    for line in text.split("\n"):
        if match := re.match(r"^CA:? '([^']*)'", line):
            close()
            device, port, fields = match[1], "", {}
            draft.item(device, "device")
        elif match := re.match(r"^\s*Port (\d+):\s*$", line):
            close()
            port, fields = match[1], {}
        elif match := KEY.match(line.strip()):
            if port:
                fields[match["key"]] = match["value"]
            elif draft.items:
                draft.items[-1][match["key"].lower().replace(" ", "_")] = match["value"]
            else:
                draft.unread("line before any device", line)
        elif line.strip():
            draft.unread("line not understood", line)
    close()
    all_listed(draft, "number_of_ports")


def all_listed(draft: Draft, count: str) -> None:
    """Every device lists as many ports as it says that it has."""
    ports = [str(item["id"]).rpartition("/")[0] for item in draft.items if item["kind"] == "port"]
    for device in [item for item in draft.items if item["kind"] == "device"]:
        said = number(str(device.get(count, "")))
        if said is not None and ports.count(str(device["id"])) < said:
            draft.unread(f"{device['id']}: says {said} ports, lists {ports.count(str(device['id']))}")


def close_port(draft: Draft, id: str, fields: dict[str, str], names: dict[str, str]) -> None:
    extra: dict[str, Value] = {new: fields.get(old) for old, new in names.items()}
    rate = re.search(r"[\d.]+", fields.get("Rate") or fields.get("rate") or "")
    port = draft.item(
        id,
        "port",
        rate_gbps=number(rate[0]) if rate else None,
        lid=lid(fields.get("Base lid") or fields.get("base lid") or fields.get("port_lid") or fields.get("Lid")),
        link_layer=fields.get("Link layer") or fields.get("link_layer"),
        guid=fields.get("Port GUID"),
        **extra,
    )
    judge_port(draft, port, f"{id}: " + ", ".join(f"{key} {value}" for key, value in fields.items() if key in names))


def lid(text: str | None) -> int | None:
    try:
        return int((text or "").split(" ")[0], 0)
    except ValueError:
        return None


def looks_ibstatus(text: str) -> bool:
    return bool(re.search(r"^Infiniband device '[^']*' port \d+ status:", text, re.M))


def read_ibstatus(draft: Draft, text: str) -> None:
    id, fields = "", dict[str, str]()

    def close() -> None:
        if id:
            close_port(draft, id, fields, {"state": "state", "phys state": "phys_state"})

    for line in text.split("\n"):
        if match := re.match(r"^Infiniband device '([^']*)' port (\d+) status:", line):
            close()
            id, fields = f"{match[1]}/{match[2]}", {}
        elif (match := KEY.match(line.strip())) and id:
            fields[match["key"]] = re.sub(r"^\d+:\s*", "", match["value"]) if "state" in match["key"] else match["value"]
        elif line.strip():
            draft.unread("line not understood", line)
    close()


def looks_devinfo(text: str) -> bool:
    return bool(re.search(r"^hca_id:\s*\S+", text, re.M))


def read_devinfo(draft: Draft, text: str) -> None:
    device, port, fields = "", "", dict[str, str]()

    def close() -> None:
        if port:
            close_port(
                draft, f"{device or '?'}/{port}", fields, {"state": "state", "phys_state": "phys_state", "active_mtu": "mtu", "active_speed": "speed"}
            )

    for line in text.split("\n"):
        if match := re.match(r"^hca_id:\s*(\S+)", line):
            close()
            device, port, fields = match[1], "", {}
            draft.item(device, "device")
        elif match := re.match(r"^\s*port:\s*(\d+)\s*$", line):
            close()
            port, fields = match[1], {}
        elif (match := KEY.match(line.strip())) and device:
            value = re.sub(r"^PORT_", "", match["value"]).strip()
            if port:
                fields[match["key"]] = value
            else:
                draft.items[-1][match["key"]] = value
        elif match or "GID[" in line or not line.strip():
            continue
        else:
            draft.unread("line not understood", line)
    close()
    all_listed(draft, "phys_port_cnt")


IBDEV = re.compile(
    r"^(?:[0-9a-f:.]+ )?(?P<device>\S+)\s+(?:\(.*\s)?port\s+(?P<port>\d+)\s+(?:\((?P<state>\w+)\s*\)\s*)?"
    r".*?==>\s+(?P<netdev>\S*)\s*\((?P<ip>\w+)\s*\)"
)
"""With -v the card and the state of the port are printed too."""


def looks_ibdev2netdev(text: str) -> bool:
    return bool(re.search(r"^\S+\s+port\s+\d+\s+==>\s+\S*\s*\(\w+\)", text, re.M))


def read_ibdev2netdev(draft: Draft, text: str) -> None:
    """ "Down" here is the IP side only: InfiniBand ports without IPoIB all say so."""
    for line in bare_lines_of(text):
        if match := IBDEV.match(line):
            port = draft.item(f"{match['device']}/{match['port']}", "port", netdev=match["netdev"] or None, ip_state=match["ip"])
            if match["state"]:
                port |= {"state": match["state"], "link_layer": "InfiniBand" if match["netdev"].startswith("ib") else "Ethernet"}
                judge_port(draft, port, line)
        elif line and not line.startswith("#"):
            draft.unread("line not understood", line)


def looks_ibportstate(text: str) -> bool:
    return bool(re.search(r"^PhysLinkState:\.|^LinkState:\.|^ibportstate: ", text, re.M))


def read_ibportstate(draft: Draft, text: str) -> None:
    """Width and speed "Active" are stale while the port is down, so they are listed only for a port that is up."""
    blocks: list[tuple[str, dict[str, str]]] = []
    for line in bare_lines_of(text):
        if match := re.match(r"^#\s*(?:\S+ )*?[Pp]ort info: (.*)$", line):
            blocks.append((match[1].lower(), {}))
        elif re.search(r"iberror|failed|timeout", line):
            draft.unread("port not read", line)
        elif match := KEY.match(line):
            if not blocks:
                blocks.append(("port", {}))
            blocks[-1][1].setdefault(match["key"], match["value"])
        elif line and not line.startswith("#"):
            draft.unread("line not understood", line)
    for id, fields in blocks:
        if not any(fields.get(key) for key in ("LinkState", "PhysLinkState")):
            if fields and any(fields.values()):
                draft.unread(f"{id}: no state")
            continue
        up = fields.get("LinkState") == "Active"
        port = draft.item(id, "port", state=fields.get("LinkState"), phys_state=fields.get("PhysLinkState"), lid=lid(fields.get("Lid")))
        port |= {"width": fields.get("LinkWidthActive") if up else None, "speed": fields.get("LinkSpeedActive") if up else None}
        judge_port(draft, port, f"{id}: {fields.get('LinkState')}, {fields.get('PhysLinkState')}")
        if up and fields.get("LinkWidthActive") in ("1X", "2X") and "4X" in fields.get("LinkWidthEnabled", ""):
            # Lanes are lost. Not told: 4X where 12X may be (what the cable has), and speeds (the slower of both ends).
            draft.finding("ib_link_degraded", "warning", id, f"{id}: width {fields['LinkWidthActive']} of {fields['LinkWidthEnabled']}")


def looks_rdma_link(text: str) -> bool:
    return bool(re.search(r"^(?:\d+/\d+: |link )\S+/\d+:? .*\bstate \w+", text, re.M))


def read_rdma_link(draft: Draft, text: str) -> None:
    for line in bare_lines_of(text):
        if not line:
            continue
        match = re.match(r"^(?:\d+/\d+: |link )(\S+?/\d+):? (.*)$", line)
        if not match:
            draft.unread("line not understood", line)
            continue
        words = match[2].split()
        fields = dict(itertools.pairwise(words))
        port = draft.item(match[1], "port", state=fields.get("state"), phys_state=fields.get("physical_state"), lid=lid(fields.get("lid")))
        port |= {"netdev": fields.get("netdev"), "link_layer": "InfiniBand" if "lid" in fields else "Ethernet" if "netdev" in fields else None}
        judge_port(draft, port, line)
