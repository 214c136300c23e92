"""An MCP server for the tests that does what it is told: ``python mcp_stub.py LOG MODE``. Standard library only.

What it hears is written to LOG, one JSON line each.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

LOG, MODE = sys.argv[1], sys.argv[2]
TOOLS = [
    "echo",
    "slow",
    "hang",
    "die",
    "half",
    "flood",
    "spam",
    "garbage",
    "big",
    "fail",
    "structured",
    "more",
    "error",
    "odd name!",
]
lock = threading.Lock()


def send(message):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def answer(request, result):
    send({"id": request["id"], "result": result})


def text(request, words, **more):
    answer(request, {"content": [{"type": "text", "text": words}], **more})


def call(request):
    params = request["params"]
    name, arguments = params["name"], params.get("arguments", {})
    if name == "echo":
        text(request, arguments["text"])
    elif name == "slow":
        token = params.get("_meta", {}).get("progressToken")
        for step in range(4):
            params = {"progressToken": token, "progress": step, "total": 4, "message": f"step {step}"}
            send({"method": "notifications/progress", "params": params})
            time.sleep(0.02)
        text(request, "done")
    elif name == "die":
        os._exit(7)
    elif name == "half":
        sys.stdout.write('{"jsonrpc": "2.0", "id": 1, "resu')
        sys.stdout.flush()
        os._exit(0)
    elif name == "flood":
        while True:
            sys.stdout.write("x" * 1_000_000)
    elif name == "garbage":
        sys.stdout.write('{"jsonrpc": "2.0", nonsense\n')
        sys.stdout.flush()
    elif name == "spam":
        while True:
            send({"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}})
    elif name == "big":
        text(request, "x" * 12_000_000)
    elif name == "fail":
        text(request, "no such file", isError=True)
    elif name == "structured":
        answer(request, {"content": [{"type": "text", "text": "{}"}], "structuredContent": {"n": 1}})
    elif name == "more":
        TOOLS.append("late")
        send({"method": "notifications/tools/list_changed"})
        text(request, "ok")
    elif name == "error":
        send({"id": request["id"], "error": {"code": -32603, "message": "it broke\u0007"}})
    # "hang" never answers


def described(name):
    properties = {"text": {"type": "string"}} if name == "echo" else {}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    if name == "odd name!":
        schema = {"type": "object", "properties": {"a": {"type": "strange"}}}
    output = {}
    if name == "structured":  # what it answers would take for ever to check
        properties = {"n": {"pattern": "^(a+)+$"}, "x": {"type": "string"}}
        output = {"outputSchema": {"type": "object", "properties": properties, "required": ["x"]}}
    return {**output, "name": name, "description": f"The {name} tool.", "inputSchema": schema,
            "annotations": {"readOnlyHint": name == "echo"}}  # fmt: skip


def main():
    if MODE == "exits":
        sys.stderr.write("cannot find my configuration\n")
        sys.exit(3)
    if MODE == "silent":
        time.sleep(60)
    if MODE == "stubborn":
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Thread(target=time.sleep, args=(60,), daemon=False).start()
    if MODE == "chatty":
        print("Welcome to the server!")
        sys.stderr.write("x" * 300_000)
    for line in sys.stdin:
        request = json.loads(line)
        with Path(LOG).open("a") as log:
            log.write(json.dumps(request) + "\n")
        method = request.get("method")
        if method == "initialize":
            answer(request, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}},
                             "serverInfo": {"name": "stub", "version": "1"}})  # fmt: skip
        elif method == "tools/list":
            if MODE == "endless":
                answer(request, {"tools": [described(f"t{len(line)}")], "nextCursor": "again"})
            elif MODE == "slow list":
                time.sleep(60)
            else:
                answer(request, {"tools": [described(name) for name in TOOLS]})
        elif method == "tools/call":
            threading.Thread(target=call, args=(request,), daemon=True).start()
        elif "id" in request and method != "ping":
            send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
        elif "id" in request:
            answer(request, {})


main()
