"""The command mcp."""

from __future__ import annotations

from pathlib import Path

import typer

from transhash.cli import INDEX, RUN, app


@app.command()
def mcp(
    run: Path = RUN,
    index: str | None = INDEX,
    writable: bool = typer.Option(False, help="Allow the client to store votes."),
) -> None:
    """Answer an MCP client, such as an assistant on the desktop, on standard input and output.

    Clients start this command themselves. Its tools search by text and by image and show items.

    Example: `transhash mcp runs/mine`
    """
    from transhash.plugins.mcp_server import serve_mcp

    serve_mcp(run, index, writable=writable)
