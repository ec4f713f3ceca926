"""An OpenAI-compatible server in a process: `small_server.py JOURNAL MODE PORT WORDS...`; notes its start and its end.

MODE: `well`; `deaf` never listens; `frail` dies with the first request; `stubborn` ignores SIGTERM and has a child.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

JOURNAL, MODE, PORT, *WORDS = sys.argv[1:]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(json.dumps({"data": [{"id": "m", "max_model_len": 512}]}), "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if MODE == "frail":
            os._exit(9)
        events = [{"choices": [{"text": "a"}]} for _ in range(body["max_tokens"])]
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        lines = [json.dumps(event) for event in [*events, {"choices": [], "usage": usage}]] + ["[DONE]"]
        self._answer("".join(f"data: {line}\n\n" for line in lines), "text/event-stream")

    def _answer(self, text: str, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def note(what: str) -> None:
    with Path(JOURNAL).open("a", encoding="utf-8") as journal:
        journal.write(f"{what}\n")


def leave(number: int, frame: object) -> None:
    note("end")
    sys.exit(0)


if MODE == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    note(f"pids {os.getpid()} {child.pid}")
else:
    signal.signal(signal.SIGTERM, leave)
note(" ".join(["start", *WORDS]))
if MODE == "deaf":
    print("loading weights", flush=True)
    time.sleep(600)
ThreadingHTTPServer(("127.0.0.1", int(PORT)), Handler).serve_forever()
