"""The page of a run while it grows: a small server that reads the run file and nothing else.

It listens on this machine alone, answers only to its own name (a page
elsewhere whose name was made to point here gets nothing), and serves the page and its data.
"""

import secrets
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ridgerider._check import one_line
from ridgerider.report._page import embedded, is_map, page, summary
from ridgerider.report._read import AnotherRun, Reader

LOCAL = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Watched:
    """A run file that is read again whenever somebody asks."""

    def __init__(self, path: Path):
        self.path, self._lock = path, threading.Lock()
        self._name, self._reader = secrets.token_hex(8), Reader(path)

    def page(self) -> str:
        with self._lock:
            token = self._read()
            return page(self._reader, token=token)

    def data(self, after: int) -> str:
        """What is new behind the first `after` legs."""
        with self._lock:
            token = self._read()
            reader = self._reader
            new = {"legs": reader.legs[after:], "details": reader.details[after:]}
            return embedded({**summary(reader), **new, "token": token})

    def _read(self) -> str:
        """Read what is new. A file that is not there yet, or not yet a run, is waited for.

        Returns a token: a page that has another one is of another run, or of one that is a map now,
        and is to be loaded again.
        """
        try:
            self._reader.read()
        except AnotherRun:
            self._name, self._reader = secrets.token_hex(8), Reader(self.path)
            return self._read()
        except FileNotFoundError:
            self._reader.trouble = f"Waiting for a run: there is none at {one_line(self.path)} yet."
        except (OSError, ValueError) as error:
            self._reader.trouble = f"Waiting for a run: {one_line(error)}."
        return f"{self._name}{'-map' if is_map(self._reader.meta) else ''}"


class Server(ThreadingHTTPServer):
    """Serves one `Watched` at `url`, at any free port if the one asked for is taken or 0."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, watched: Watched, port: int = 8765):
        self.watched = watched
        try:
            super().__init__(("127.0.0.1", port), Handler)
        except OverflowError:
            raise ValueError(f"`port` must be between 0 and 65535, not {port}.") from None
        except OSError:  # it is taken
            super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is not reported; other errors are."""
        error = sys.exception()
        if not isinstance(error, OSError):
            print(f"a request failed: {type(error).__name__}: {one_line(error)}", file=sys.stderr)

    def is_ours(self, host: str | None) -> bool:
        """Whether a request's Host names this server: somebody else's name may point here."""
        name, _, port = (host or "").lower().rpartition(":")
        return port == str(self.server_address[1]) and name in LOCAL


class Handler(BaseHTTPRequestHandler):
    """Two paths: the page, and its data."""

    server: Server
    server_version, sys_version = "ridgerider", ""
    timeout = 10  # seconds, for each part of a request

    def do_GET(self) -> None:
        if not self.server.is_ours(self.headers.get("Host")):
            self._answer(421, "text/plain", "This server answers to its own name only.")
            return
        watched = self.server.watched
        try:
            asked = urlsplit(self.path)
            query = dict(parse_qsl(asked.query, max_num_fields=10))
        except ValueError:  # an address without its bracket, or too many fields
            self._answer(400, "text/plain", "This address cannot be read.")
            return
        if asked.path == "/":
            self._answer(200, "text/html", watched.page())
        elif asked.path != "/data":
            self._answer(404, "text/plain", "There is nothing here.")
        elif not self.headers.get("X-Ridgerider"):  # another site cannot send this header
            self._answer(403, "text/plain", "Only the page itself may ask.")
        else:
            after = 0
            with suppress(ValueError):
                after = max(0, int(query.get("after", "")))
            self._answer(200, "application/json", watched.data(after))

    do_HEAD = do_GET

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def _answer(self, status: int, kind: str, text: str) -> None:
        content = text.encode(errors="backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal belongs to the user."""
