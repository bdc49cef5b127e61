"""Generates the gRPC stubs in `_pb/` from `proto/aegis/v1/`: `python -m aegis_proto.stubs [folder]`. Needs grpcio-tools (extra `dev`).

A test compares what this writes with what is checked in.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
PROTOS = ("credentials.proto",)


def generate(target: Path) -> None:
    """Write the stubs into `target`/aegis_proto/_pb."""
    from grpc_tools import protoc

    (target / "aegis_proto" / "_pb").mkdir(parents=True, exist_ok=True)
    source = HERE.parent / "aegis" / "v1"
    for name in PROTOS:
        # The virtual path makes the stubs importable as aegis_proto._pb.
        arguments = ["protoc", f"-Iaegis_proto/_pb={source}", f"--python_out={target}", f"--grpc_python_out={target}", f"aegis_proto/_pb/{name}"]
        if protoc.main(arguments) != 0:
            raise SystemExit(f"protoc failed on {name}")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent)
