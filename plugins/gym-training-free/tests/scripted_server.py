"""A server that speaks OpenAI's chat completions, in this process: what it says is a function, and how it fails a script.

It keeps every request and counts tokens itself: those of a reply that it made, whether or not anybody got to read it.
"""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("status 429", "status 500", "timeout", "malformed", "dropped", "half", "no usage")


def tokens(text):
    """Return a number of tokens that is never more than the bytes."""
    return len(text.encode()) // 4


class ScriptedServer(ThreadingHTTPServer):
    """Replies with `answer(request) -> text or message`; `fault(request, attempt)` names one of FAULTS, or nothing."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, answer, fault=lambda request, attempt: "", key=""):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.fault, self.key = answer, fault, key
        self.requests, self.headers, self.counted, self.over = [], [], Counter(), threading.Event()
        self.most_at_once, self.flying, self.lock = 0, 0, threading.Lock()
        self.retry_after = "0"
        self.base_url = f"http://127.0.0.1:{self.server_port}/v1"
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        self.shutdown()
        self.thread.join()
        self.server_close()

    def handle_error(self, request, client_address):
        """A client that went away is nothing to print."""

    @property
    def total(self):
        return self.counted["prompt_tokens"] + self.counted["completion_tokens"]

    def seen(self, request):
        """Return how often this very request came, this time included."""
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        with self.lock:
            self.requests.append(request)
            self.counted[digest] += 1
            return self.counted[digest]

    def count(self, prompt, completion):
        with self.lock:
            self.counted["prompt_tokens"] += prompt
            self.counted["completion_tokens"] += completion
            self.counted["replies"] += 1


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server = self.server
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.headers.append(dict(self.headers))
            server.flying += 1
            server.most_at_once = max(server.most_at_once, server.flying)
        try:
            self.serve(request, server.fault(request, server.seen(request)))
        finally:
            with server.lock:
                server.flying -= 1

    def serve(self, request, fault):
        server = self.server
        if server.key and self.headers["Authorization"] != f"Bearer {server.key}":
            self.reply(401, {"error": {"message": f"Incorrect key: {self.headers['Authorization']}"}})
        elif fault.startswith("status"):
            status = int(fault.split()[1])
            self.reply(status, {"error": {"message": f"{self.headers['Authorization']} must wait"}})
        elif fault.startswith("refuses"):
            name = fault.split()[1]
            why = f"Unsupported value: '{name}' does not support {request.get(name)} with this model."
            self.reply(400, {"error": {"message": why, "param": name, "code": "unsupported_value"}})
        elif self.path.endswith("/embeddings"):
            self.embeddings(request)
        else:
            self.complete(request, fault)

    def complete(self, request, fault):
        server = self.server
        said = server.answer(request)
        message = {"role": "assistant", "content": said} if isinstance(said, str) else {"role": "assistant", **said}
        finish = message.pop("finish_reason", "tool_calls" if "tool_calls" in message else "stop")
        prompt, completion = tokens(json.dumps(request["messages"])), tokens(json.dumps(message))
        server.count(prompt, completion)
        used = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        body = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            **({} if fault == "no usage" else {"usage": used}),
        }
        if fault == "timeout":
            server.over.wait(30)
        elif fault == "dropped":  # a reset, before any byte
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        elif fault == "half":
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.connection.close()
        else:
            self.reply(200, "{no json" if fault == "malformed" else body)

    def embeddings(self, request):
        rows = [[float(text.count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in request["input"]]
        prompt = sum(map(tokens, request["input"]))
        self.server.count(prompt, 0)
        data = [{"object": "embedding", "index": place, "embedding": row} for place, row in enumerate(rows)]
        used = {"prompt_tokens": prompt, "total_tokens": prompt}
        self.reply(200, {"object": "list", "data": data, "model": request["model"], "usage": used})

    def reply(self, status, body):
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 429:
            self.send_header("Retry-After", self.server.retry_after)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        """Stay quiet."""
