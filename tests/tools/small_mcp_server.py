"""A small MCP server over stdio, run as a program: in the standard library only, so that it starts at once.

Its tools do what tools of the world do: answer, report an error, die, hang. `pid` says which process answers.
With the argument `no-list` it does not list them.
"""

import json
import os
import sys

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


def called(name, arguments):
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
