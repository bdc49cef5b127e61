"""`aegis net sim` and `aegis net parse`: the fabric as a model, and what the fabric's tools printed. Neither needs a service; `netlinks` does.

Reads the file that `parse` is given; `sim --svg FILE` writes a picture.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aegis_cli.commands import netlinks, netpairs, netrollout
from aegis_cli.errors import CliError
from aegis_cli.offline import core
from aegis_cli.options import Env, command
from aegis_cli.output import Column

GPUS, GROUP = 512, 16
"""Of the experiments that the model repeats: one job of 512 GPUs; groups of 16."""


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="The network: links and the jobs on them, what its tools say, and a model of it.", no_args_is_help=True)
    app.add_typer(group, name="net")
    netlinks.register(group)
    netrollout.register(group)
    netpairs.register(group)

    @command(group, "parse")
    def parse(
        env: Env,
        *,
        tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool that printed it, or auto.", show_default=False)] = "",
        file: Annotated[str, typer.Argument(metavar="FILE|-", help="Its output; - is stdin.")] = "-",
        exit_code: Annotated[bool, typer.Option("--exit-code", help="End with 1 unless healthy.")] = False,
        list_tools: Annotated[bool, typer.Option("--list", help="List the tools.")] = False,
    ) -> int:
        """What a tool's output says: items, findings, and what could not be read. The same as `aegis-agent parse`; -o wide shows the items."""
        from aegis_parsers import UnknownTool
        from aegis_parsers import command as parsers

        if list_tools:
            rows = [{"tool": name, "also": names} for name, names in parsers.tools().items()]
            columns = [Column("TOOL", lambda row: row["tool"]), Column("ALSO", lambda row: ", ".join(row["also"]))]
            env.out.listing("ToolList", rows, columns, lambda row: row["tool"])
            return 0
        if not tool:
            raise CliError("E107", "a tool is needed", hint="aegis net parse --list names them; auto finds it from the text", exit=2)
        try:
            parsed = parsers.read(tool, file)
        except UnknownTool as error:
            raise CliError("E107", str(error), hint="aegis net parse --list names them", exit=2) from None
        except OSError as error:
            raise CliError("E107", f"{file}: {error.strerror or error}", exit=2) from None
        env.out.document("Parsed", parsers.document(parsed), parsers.text(parsed, items=env.out.form == "wide"), parsed.health)
        return parsers.exit_code(parsed) if exit_code else 0

    @command(group, "sim")
    def sim(
        env: Env,
        *,
        gpus: Annotated[
            int, typer.Option("--gpus", metavar="N", help=f"GPUs in all ({GPUS}; with --groups {GROUP} per group).", show_default=False)
        ] = 0,
        groups: Annotated[int, typer.Option("--groups", metavar="N", help="Jobs at once, of equal size.")] = 1,
        bad_links: Annotated[int, typer.Option("--bad-links", metavar="N", help="Links with bit errors, among those in use.")] = 0,
        ber: Annotated[float, typer.Option("--ber", help="Bit error rate of a bad link, after correction.")] = 1e-6,
        where: Annotated[str, typer.Option("--where", metavar="KIND", help="The bad links: uplink, downlink or host.")] = "uplink",
        routing: Annotated[str, typer.Option("--routing", metavar="KIND", help="static (d-mod-k), ecmp or adaptive.")] = "static",
        stale: Annotated[float, typer.Option("--stale", help="Adaptive: share of packets placed on old knowledge (0: ideal).")] = 0.0,
        spreading: Annotated[float, typer.Option("--spreading", help="Adaptive: share of a blocked flow's queue that blocks its uplinks.")] = 0.0,
        slow_ports: Annotated[int, typer.Option("--slow-ports", metavar="N", help="NICs that receive at half rate.")] = 0,
        placement: Annotated[str, typer.Option("--placement", help="sorted or random (random for several groups).", show_default=False)] = "",
        seed: Annotated[int, typer.Option("--seed", help="Of placement, hashes and bad links.")] = 0,
        window: Annotated[int, typer.Option("--window", metavar="PACKETS", help="What a lost packet makes the transport send again.")] = 64,
        mtu: Annotated[int, typer.Option("--mtu", metavar="OCTETS", help="Size of a packet.")] = 4096,
        gbps: Annotated[float, typer.Option("--link-gbps", help="Rate of a link, in Gbit/s.")] = 200.0,
        svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Also draw all routings.", show_default=False)] = None,
    ) -> None:
        """What a bad link costs, and what jobs take from each other, under static and adaptive routing: bandwidths from a model of a fat-tree."""
        model = core("aegis_netmon.sim.experiment", "aegis net sim")
        report = core("aegis_netmon.sim.report", "aegis net sim")
        switch = core("aegis_netmon.sim.routes", "aegis net sim").Adaptive(stale, spreading)
        if (stale or spreading) and routing != "adaptive":
            raise CliError("E107", "--stale and --spreading are of an adaptive switch", hint="--routing adaptive", exit=2)
        chosen = {
            "gpus": gpus or (groups * GROUP if groups > 1 else GPUS),
            "groups": groups,
            "bad_links": bad_links,
            "ber": ber,
            "bad_where": where,
            "slow_ports": slow_ports,
            "routing": routing,
            "switch": switch,
            "placement": placement or ("random" if groups > 1 else "sorted"),
            "seed": seed,
            "window": window,
            "mtu": mtu,
            "gbps": gbps,
        }
        try:
            setup = model.Setup(**chosen)
            result = model.run(setup)
            drawn = report.picture(setup) if svg is not None else ""
        except ValueError as error:
            raise CliError("E107", str(error), exit=2) from None
        if svg is not None:
            try:
                svg.write_text(drawn, encoding="utf-8")
            except OSError as error:
                raise CliError("E107", f"--svg {svg}: {error.strerror or error}", exit=2) from None
        env.out.document("FabricRun", result, report.words(result), f"{result.bandwidth_gbps:g}")
