"""The paced server: routes, and what its runs need of it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from pytest_llmbench.paced.ask import BadRequestError, Endpoint, parse_ask, parse_object, prompt_of_chat
from pytest_llmbench.paced.faults import die
from pytest_llmbench.paced.info import Counters, Identity, metrics, models, props, slots_state
from pytest_llmbench.paced.run import OVERFLOW, Run
from pytest_llmbench.paced.shapes import error_body
from pytest_llmbench.paced.slots import Slot, Slots
from pytest_llmbench.paced.tokenizer import decode, encode, piece_bytes
from pytest_llmbench.paced.truth import TruthLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_llmbench.paced.command import Options
    from pytest_llmbench.paced.pace import Pace
    from pytest_llmbench.paced.wire import Connection, Request

_GENERATING: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/chat/completions": "chat",
    "/completion": "completion",
    "/completions": "completion",
    "/v1/completions": "text",
}


class Server:
    """One server: a model name, slots, a pace. ``ready`` turns true when loading is over."""

    def __init__(self, options: Options, pace: Pace, start_factor: float, log: Callable[[str], None]) -> None:
        self.options, self.pace, self.start_factor, self.log = options, pace, start_factor, log
        self.model, self.n_ctx = options.model_name, options.n_ctx_slot(pace.n_ctx_train)
        self.keep_alive_s, self.keep_alive_max = pace.keep_alive_s, pace.keep_alive_max
        self.ready = False
        self.on_idle: Callable[[], None] | None = None
        self._slots = Slots([Slot(i) for i in range(options.n_slots)])
        self._counters = Counters()
        self._runs: set[Run] = set()
        self._numbered = 0
        self._ended = 0
        self._started = int(time.time())
        self.truth = TruthLog(pace.truth_log, idle=lambda: not self._runs)
        self._who = Identity(
            model=self.model, model_path=options.model, n_ctx=self.n_ctx, n_slots=options.n_slots,
            n_ctx_train=pace.n_ctx_train, metrics=options.metrics, slots=options.slots, overrides=pace.props,
        )  # fmt: skip

    # ---- requests

    def handle(self, connection: Connection, request: Request) -> None:
        path = request.path
        if self.options.api_keys and path not in ("/health", "/v1/health", "/") and not self._authorised(request):
            error = {"message": "Invalid API Key", "type": "authentication_error", "code": 401}
            connection.respond(401, {"error": error})
            return
        if not self.ready:
            error = {"message": "Loading model", "type": "unavailable_error", "code": 503}
            connection.respond(503, {"error": error})
            return
        try:
            if request.method == "POST" and path in _GENERATING:
                self._generate(connection, request)
            elif not (self._get(connection, path) if request.method == "GET" else self._post(connection, request)):
                error = {"message": "File Not Found", "type": "not_found_error", "code": 404}
                connection.respond(404, {"error": error})
        except BadRequestError as error:
            connection.respond(400, error_body(400, str(error), "invalid_request_error"))

    def _authorised(self, request: Request) -> bool:
        key = request.headers.get("authorization") or request.headers.get("x-api-key") or ""
        return key.removeprefix("Bearer ") in self.options.api_keys

    def _get(self, connection: Connection, path: str) -> bool:
        if path in ("/health", "/v1/health"):
            connection.respond(200, {"status": "ok"})
        elif path == "/props":
            connection.respond(200, props(self._who))
        elif path in ("/v1/models", "/models"):
            connection.respond(200, models(self._who, int(time.time())))
        elif path == "/slots":
            if self.options.slots:
                connection.respond(200, slots_state(self._who, self._slots))
            else:
                self._unsupported(connection, "slots", "--slots")
        elif path == "/metrics":
            if self.options.metrics:
                text = metrics(self._counters, self._slots).encode()
                head = f"Process-Start-Time-Unix: {self._started}\r\n"
                connection.respond(200, text, content_type="text/plain; version=0.0.4", headers=head)
            else:
                self._unsupported(connection, "metrics", "--metrics")
        else:
            return False
        return True

    def _unsupported(self, connection: Connection, name: str, flag: str) -> None:
        message = f"This server does not support {name} endpoint. Start it with `{flag}`"
        connection.respond(501, error_body(501, message, "not_supported_error"))

    def _post(self, connection: Connection, request: Request) -> bool:
        path = request.path
        if path == "/tokenize":
            connection.respond(200, {"tokens": self._tokens(parse_object(request.body))})
        elif path == "/detokenize":
            ids = parse_object(request.body).get("tokens", [])
            if not isinstance(ids, list) or not all(type(one) is int for one in ids):
                raise BadRequestError("[json.exception.type_error.302] type must be array of numbers: tokens")
            connection.respond(200, {"content": decode(ids)})
        elif path == "/apply-template":
            connection.respond(200, {"prompt": prompt_of_chat(parse_object(request.body))})
        elif path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
            ids = encode(prompt_of_chat(parse_object(request.body)), add_bos=self.pace.add_bos)
            connection.respond(200, {"input_tokens": len(ids), "object": "response.input_tokens"})
        else:
            return False
        return True

    def _tokens(self, body: dict[str, Any]) -> list[Any]:
        text = body.get("content", "")
        if not isinstance(text, str):
            raise BadRequestError("[json.exception.type_error.302] type must be string: content")
        add_bos = body.get("add_special") is True and self.pace.add_bos
        ids = encode(text, add_bos=add_bos, parse_special=body.get("parse_special") is not False)
        if body.get("with_pieces") is not True:
            return list(ids)
        return [{"id": token, "piece": _piece(token)} for token in ids]

    def _generate(self, connection: Connection, request: Request) -> None:
        ask = parse_ask(
            _GENERATING[request.path], request.body, add_bos=self.pace.add_bos, default_limit=self.options.n_predict
        )
        self._numbered += 1
        pace = self.pace.for_request(self._numbered)
        run = Run(self, connection, request, ask, pace, self._numbered)
        self._runs.add(run)
        if pace.http_error is not None:
            run.refuse(pace.http_error, "paced: refused as told", "server_error")
            return
        self._slots.place(run)

    # ---- what runs tell

    def finished(self, run: Run, end: str, at_ns: int) -> None:
        self._runs.discard(run)
        self.truth.add(run.record)
        self._counters.add(run, run.record.predicted_n)
        self.log(f"slot      release: id {run.slot_id:2} | task {run.number} | stop processing: {end}")
        self._slots.release(run, at_ns)
        self._ended += 1
        if end != "exit" and self._ended == self.pace.exit_after_requests:
            # The answer that has just ended is still to be written: die when that is done.
            asyncio.get_running_loop().call_soon(self.die, self.pace)
        if not self._runs and self.on_idle is not None:
            self.on_idle()

    def die(self, pace: Pace) -> None:
        self.truth.flush()
        die(pace.exit_code, pace.exit_signal)

    def error_all(self) -> None:
        for run in self._slots.running():
            run.fail(OVERFLOW)

    # ---- ending

    @property
    def busy(self) -> bool:
        return bool(self._runs)

    def freeze(self) -> None:
        for run in self._runs:
            run.freeze()

    def close_log(self) -> None:
        """Write what is not yet in the truth log, open requests included."""
        for run in list(self._runs):
            if run.record.end == "open":
                run.record.end = "shutdown"
            self.truth.add(run.record)
        self._runs.clear()
        self.truth.flush()


def _piece(token: int) -> str | list[int]:
    raw = piece_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
