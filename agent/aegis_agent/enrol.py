"""Enrolment in a short-lived child, so that gRPC's memory never stays in the agent; the seed of the nkey stays with the parent, which signs.

Parent and child talk in JSON lines over one socket: the request (with the join token: not in arguments, not in the environment), the bytes to sign
and their signature, and the outcome. `python -m aegis_agent.enrol` is the child.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aegis_agent import own

if TYPE_CHECKING:
    from aegis_agent.reaper import Reaper

Sign = Callable[[bytes], bytes]


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


class Session:
    """One child. Started early, it loads gRPC while the parent loads the bus; good for one question."""

    def __init__(self, reaper: Reaper, environ: Mapping[str, str]) -> None:
        """OSError when the child cannot be started."""
        self._ours, theirs = socket.socketpair()
        with theirs:
            end = theirs.fileno()
            try:
                self._child = reaper.spawn([*own.python(), "-m", "aegis_agent.enrol"], env=environ, stdin=end, stdout=end, helper=True)
            except OSError:
                self._ours.close()
                raise

    def close(self) -> None:
        self._ours.close()
        self._child.signal_group(signal.SIGKILL)

    async def ask(self, sign: Sign, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The answer to `request` {target, ca, job, pod, attempt, uid, nkey, token, timeout}: {"jwt", "servers", "expires"}, or `EnrolFailed`."""
        reader, writer = await asyncio.open_unix_connection(sock=self._ours, limit=1 << 20)
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(timeout):
                while line := await reader.readline():
                    answer = json.loads(line)
                    if "jwt" in answer:
                        return dict(answer)
                    if "sign" not in answer:
                        raise EnrolFailed(str(answer.get("kind")), str(answer.get("code")), str(answer.get("message")))
                    data = bytes.fromhex(answer["sign"])
                    if not may_sign(data, request["job"], request["pod"], request["attempt"], request["nkey"]):
                        raise EnrolFailed("refused", "badRequest", "E102 asked to sign what is not this worker's challenge")
                    writer.write(json.dumps({"signature": sign(data).hex()}).encode() + b"\n")
            raise EnrolFailed("unreachable", "", "E101 the enrolment process ended without an answer")
        except TimeoutError:
            text = f"E101 no answer from the credentials service at {request['target']} within {timeout:.0f} s"
            raise EnrolFailed("unreachable", "", text) from None
        except OSError as error:
            raise EnrolFailed("unreachable", "", f"E101 the enrolment process is gone: {error}") from None
        finally:
            writer.close()
            self.close()


def main() -> int:
    """The child: request on stdin, outcome on stdout."""
    from aegis_agent.reaper import hide_memory

    hide_memory()
    channel = socket.socket(fileno=os.dup(0))
    lines = channel.makefile("rwb", buffering=0)

    def say(content: dict[str, Any]) -> None:
        lines.write(json.dumps(content).encode() + b"\n")

    from aegis_proto import enroll

    enroll.load()
    line = lines.readline()
    if not line:
        return 0  # the parent needs no answer any more
    request = json.loads(line)

    def sign(data: bytes) -> bytes:
        say({"sign": data.hex()})
        return bytes.fromhex(json.loads(lines.readline())["signature"])

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
