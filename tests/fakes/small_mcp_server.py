"""A small MCP server over stdio, run as a program: in the standard library only, so that it starts at once.

Its tools do what tools of the world do: answer, report an error, die, hang. `pid` says which process answers.
With the argument `no-list` it does not list them. With `hold FOLDER` no call is answered before the folder
has a file `go-on`; until then a call writes the number of the process into the file `pid` there, for it to be
killed.
"""

import json
import os
import sys
from pathlib import Path

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NONE = {"type": "object", "properties": {}}
TOOLS = {
    "echo": ("Says the text again.", TEXT),
    "variable": ("Shows a variable of the environment.", TEXT),
    "error": ("Always fails.", NONE),
    "die": ("Ends the server.", NONE),
    "hang": ("Never answers.", NONE),
    "pid": ("Says which process this is.", NONE),
}


def text(said, is_error=False):
    return {"content": [{"type": "text", "text": said}], "isError": is_error}


def is_held():
    """Must a call wait? Says then which process this is."""
    if "hold" not in sys.argv:
        return False
    folder = Path(sys.argv[sys.argv.index("hold") + 1])
    if (folder / "go-on").exists():
        return False
    part = folder / f"pid.{os.getpid()}"
    part.write_text(str(os.getpid()))
    part.replace(folder / "pid")
    return True


def called(name, arguments):
    if is_held():
        return None
    if name == "die":
        os._exit(1)
    if name == "hang":
        return None
    if name == "error":
        return text("the disk is full", True)
    if name == "pid":
        return text(str(os.getpid()))
    if name == "variable":
        return text(os.environ.get(arguments["text"], "(not set)"))
    return text(arguments["text"])


def answer(request):
    method, params = request["method"], request.get("params", {})
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "small", "version": "1"},
        }
    if method == "tools/list" and "no-list" not in sys.argv:
        tools = [{"name": n, "description": d, "inputSchema": s} for n, (d, s) in TOOLS.items()]
        return {"tools": tools}
    if method == "tools/call":
        return called(params["name"], params.get("arguments") or {})
    raise LookupError


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    reply = {"jsonrpc": "2.0", "id": request["id"]}
    try:
        result = answer(request)
        if result is None:
            continue
        reply["result"] = result
    except LookupError:
        reply["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(reply), flush=True)
