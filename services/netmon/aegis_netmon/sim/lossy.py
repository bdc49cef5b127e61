"""What bit errors leave of a link's rate.

The reliable transport of InfiniBand and RoCE goes back to the lost packet and sends again what was on the way: one loss costs a window. The link
stays "up": at a BER of 1e-6 about 3 % of packets of 4 KiB are lost and two thirds of the rate is gone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def packet_loss(ber: float, mtu: int = 4096) -> float:
    """Share of packets of `mtu` octets with at least one wrong bit."""
    return float(-np.expm1(8 * mtu * np.log1p(-min(ber, 0.999999))))


def goodput(loss: float | Floats, window: int = 64) -> Floats:
    """Share of the wire rate that is useful, for a flow that loses this share of its packets: (1-p) / (1-p + p W), go-back-N with a window of W
    packets.

    >>> round(float(goodput(packet_loss(1e-6))), 2)
    0.32
    """
    p = np.asarray(loss, dtype=np.float64)
    return np.asarray((1 - p) / (1 - p + p * window), dtype=np.float64)
