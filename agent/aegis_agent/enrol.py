"""Enrolment in a short-lived child, so that gRPC's memory never stays in the agent; the seed of the nkey stays with the parent, which signs.

Parent and child talk in JSON lines over one socket: the request (with the join token: not in arguments, not in the environment), the bytes to sign
and their signature, and the outcome. `python -m aegis_agent.enrol` is the child.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import Any

OUTCOMES = ("unreachable", "certificate", "refused")


class EnrolFailed(Exception):
    """`kind`: unreachable | certificate | refused. `code`: the service's word for a refusal (badToken, bound, superseded, revoked, ended ...)."""

    def __init__(self, kind: str, code: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code


def may_sign(data: bytes, job: str, pod: str, attempt: int, nkey: str) -> bool:
    """Only a challenge for this very worker is signed, whatever the child asks for."""
    nonce, _, rest = data.decode("utf-8", "replace").partition("|")
    return 16 <= len(nonce) <= 256 and rest == f"{job}|{pod}|{attempt}|{nkey}"


async def enrol(reaper: Any, sign: Any, request: dict[str, Any], environ: dict[str, str], timeout: float) -> dict[str, Any]:
    """Run the child for `request` {target, ca, job, pod, attempt, uid, nkey, token, timeout}: {"jwt", "servers", "expires"}, or `EnrolFailed`."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 20)
    child = None
    try:
        child = reaper.spawn(
            [sys.executable, "-m", "aegis_agent.enrol"], env=environ, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=None, helper=True
        )
        theirs.close()
        writer.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(timeout):
            while line := await reader.readline():
                answer = json.loads(line)
                if "sign" in answer:
                    data = bytes.fromhex(answer["sign"])
                    if not may_sign(data, request["job"], request["pod"], request["attempt"], request["nkey"]):
                        raise EnrolFailed("refused", "badRequest", "E102 asked to sign what is not this worker's challenge")
                    writer.write(json.dumps({"signature": sign(data).hex()}).encode() + b"\n")
                elif "jwt" in answer:
                    return dict(answer)
                else:
                    raise EnrolFailed(str(answer.get("kind")), str(answer.get("code")), str(answer.get("message")))
        raise EnrolFailed("unreachable", "", "E101 the enrolment process ended without an answer")
    except TimeoutError:
        raise EnrolFailed("unreachable", "", f"E101 no answer from the credentials service at {request['target']} within {timeout:.0f} s") from None
    except OSError as error:
        raise EnrolFailed("unreachable", "", f"E101 cannot run the enrolment: {error}") from None
    finally:
        theirs.close()
        writer.close()
        if child is not None and child.alive:
            child.signal_group(9)


def main() -> int:
    """The child: request on stdin, outcome on stdout."""
    from aegis_agent.reaper import hide_memory

    hide_memory()
    channel = socket.socket(fileno=os.dup(0))
    lines = channel.makefile("rwb", buffering=0)

    def say(content: dict[str, Any]) -> None:
        lines.write(json.dumps(content).encode() + b"\n")

    request = json.loads(lines.readline())

    def sign(data: bytes) -> bytes:
        say({"sign": data.hex()})
        return bytes.fromhex(json.loads(lines.readline())["signature"])

    from aegis_proto import enroll

    try:
        ca = request["ca"].encode()
        who = (request["job"], request["pod"], request["attempt"], request["uid"], request["nkey"])
        done = enroll.enroll(request["target"], ca, *who, sign, request["token"], request["timeout"])
    except enroll.Unreachable as error:
        say({"kind": "unreachable", "code": "", "message": str(error)})
    except enroll.CertificateBad as error:
        say({"kind": "certificate", "code": "", "message": str(error)})
    except enroll.Refused as error:
        say({"kind": "refused", "code": error.code, "message": str(error)})
    else:
        say({"jwt": done.jwt, "servers": list(done.servers), "expires": done.expires})
    return 0


if __name__ == "__main__":
    sys.exit(main())
