"""A stand-in for llama-server with exact behaviour: it serves /health, /props and /v1/models, and misbehaves on request.

Run as ``python fake_server.py --port N -m MODEL [--fake-… …]``; flags that it does not know are ignored.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("-m", dest="model", required=True)
    parser.add_argument("--fake-load-s", type=float, default=0.0, help="answer 503 that long")
    parser.add_argument("--fake-exit", type=int, help="print two lines and end with this code at once")
    parser.add_argument("--fake-abort", action="store_true", help="die of SIGKILL while loading")
    parser.add_argument("--fake-ignore-term", action="store_true")
    parser.add_argument("--fake-grandchild", type=Path, help="start a child, also deaf to TERM, and write its pid here")
    parser.add_argument("--fake-hang", action="store_true", help="never listen")
    parser.add_argument("--fake-model", help="tell another model in /props")
    parser.add_argument("--fake-bind-failures", type=Path, help="a file with the number of binds that still fail")
    return parser.parse_known_args()[0]


def main() -> int:
    args = arguments()
    if args.fake_ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.fake_grandchild:
        child = subprocess.Popen(["sleep", "600"])
        args.fake_grandchild.write_text(str(child.pid), encoding="ascii")
    if args.fake_exit is not None:
        print("first words on stdout", flush=True)
        print("last words on stderr", file=sys.stderr, flush=True)
        return int(args.fake_exit)
    if args.fake_hang:
        time.sleep(600)
    if args.fake_bind_failures:
        left = int(args.fake_bind_failures.read_text(encoding="ascii"))
        args.fake_bind_failures.write_text(str(left - 1), encoding="ascii")
        if left > 0:
            print(f"E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {args.port}", flush=True)
            return 1
    serve(args)
    return 0


def serve(args: argparse.Namespace) -> None:
    ready_at = time.monotonic() + args.fake_load_s

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if time.monotonic() < ready_at:
                self.answer(503, {"error": {"message": "Loading model"}})
                if args.fake_abort:
                    os.kill(os.getpid(), signal.SIGKILL)
                return
            pages: dict[str, object] = {
                "/health": {"status": "ok"},
                "/props": {"model_path": args.fake_model or args.model, "total_slots": 1},
                "/v1/models": {"object": "list", "data": []},
            }
            page = pages.get(self.path)
            self.answer(404 if page is None else 200, page)

        def answer(self, status: int, page: object) -> None:
            body = json.dumps(page).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", args.port), Handler) as server:
        print(f"listening on {args.port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
