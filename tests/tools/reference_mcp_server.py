"""An MCP server made with the official package, run as a program: what such a server returns for Python's
types, and what it says of an error."""

from typing import Literal

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

server = MCPServer("reference", log_level="CRITICAL")


class Town(BaseModel):
    name: str
    people: int


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def town(name: str) -> Town:
    return Town(name=name, people=3)


@server.tool()
def people(town: Town) -> str:
    return f"{town.name}: {town.people}"


@server.tool()
async def written(words: list[str], how: Literal["small", "large"] = "large") -> list[str]:
    return [word.upper() if how == "large" else word.lower() for word in words]


@server.tool()
def picture() -> Image:
    return Image(data=b"x", format="png")


@server.tool()
def error(why: str) -> str:
    raise ToolError(why)


if __name__ == "__main__":
    server.run()
