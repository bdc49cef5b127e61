"""Bit error rates: reading them and computing them.

Targets: effective and symbol BER above 1e-15 is worth watching in an AI fabric, above 1e-12 is bad (IBTA's classic target; ibdiagnet's default).
Raw BER is before correction: healthy HDR and NDR links show 4e-9 to 1e-7, so it is never judged alone.
"""

from __future__ import annotations

import re

WATCH = 1e-15
BAD = 1e-12
NO_ERROR = re.compile(r"^1(?:5|\.5)E-25[0-9]$|^0(?:\.0+)?(?:E[-+]?\d+)?$", re.IGNORECASE)
LANE_GBPS = {"SDR": 2.5, "DDR": 5.0, "QDR": 10.0, "FDR10": 10.3125, "FDR": 14.0625, "EDR": 25.78125, "HDR": 53.125, "NDR": 106.25, "XDR": 212.5}
ETHERNET_GBPS = {"10G": 10.3125, "25G": 25.78125, "40G": 41.25, "50G": 53.125, "100G": 106.25, "200G": 212.5, "400G": 425.0, "800G": 850.0}
"""On the wire, with the overhead of line code and FEC."""


def read_ber(text: str | None) -> float | None:
    """A BER as tools print it: "15E-255" is "no error seen", N/A is unknown."""
    word = (text or "").strip()
    if NO_ERROR.match(word):
        return 0.0
    try:
        value = float(word)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None


def line_rate_gbps(speed: str | None, width: str | None) -> float | None:
    """ "IB-HDR" and "2x" -> 106.25; "400G" (also "400G_4X", "400GbE") -> 425: Ethernet speeds are of the whole port."""
    word = (speed or "").upper().replace("IB-", "").strip().partition("_")[0].removesuffix("BE")
    if word in ETHERNET_GBPS:
        return ETHERNET_GBPS[word]
    lanes = re.match(r"(\d{1,2})x", (width or "").lower())
    return LANE_GBPS[word] * int(lanes[1]) if word in LANE_GBPS and lanes else None


def last_bin(fec: str | None) -> int:
    """How many symbols of a code word a Reed-Solomon code corrects, by its name: "RS-FEC - (544,514) + PLR" is (544 - 514) / 2 = 15, "(528,514)" and
    "(272,257+1)" are 7. 15, that of HDR and above, where the name does not say."""
    code = re.search(r"RS\D*\((\d{2,4}),\s*(\d{2,4})(?:\+(\d))?\)", (fec or "")[:80])
    corrects = (int(code[1]) - int(code[2]) - int(code[3] or 0)) // 2 if code else 0
    return corrects if 0 < corrects < 64 else 15


def raw_ber(errors: int, minutes: float, gbps: float) -> float | None:
    """Errors over the bits that passed since the counters were cleared."""
    bits = minutes * 60 * gbps * 1e9
    return errors / bits if bits > 0 else None
