"""The page of a run while it grows: a small server that reads the run file and nothing else.

It listens on this machine alone unless told otherwise, answers only to its own name (a page
elsewhere whose name was made to point here gets nothing), and serves the page, its data and, on
request, a landscape.
"""

import ipaddress
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ridgerider._check import one_line
from ridgerider._search.results.result import Result
from ridgerider._search.runfile.partial import AnotherRun
from ridgerider._search.tree.tree import Fingerprint
from ridgerider.plot._landscape import plane_of_rides
from ridgerider.report._differ import loss_between
from ridgerider.report._map import is_map
from ridgerider.report._page import embedded, page, plain_landscape, summary
from ridgerider.report._read import Reader

LOCAL = ("127.0.0.1", "localhost", "::1")
NUM_PORTS = 20  # tried from the one that was asked for
MAX_CONNECTIONS = 32  # at a time; what comes beyond them is closed
SECONDS = 10  # that a request may take to arrive, or an answer to be taken
MAX_DIGITS = 12  # of a number in a request
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Watched:
    """A run file that is read again whenever somebody asks.

    `load` opens it with its problem, `measure` adds what is asked to be measured of new legs.
    """

    def __init__(
        self,
        path: Path,
        load: Callable[[], Result] | None = None,
        measure: Callable[[], None] | None = None,
    ):
        self.path, self._load, self._measure = path, load, measure
        self._lock, self._computing = threading.Lock(), threading.Lock()
        self._name, self._reader = secrets.token_hex(8), Reader(path)

    @property
    def token(self) -> str:
        """A page that has another token is to be loaded again: of another run, or now a map."""
        return f"{self._name}{'-map' if is_map(self._reader.meta) else ''}"

    def page(self) -> str:
        with self._lock:
            self._read()
            return page(self._reader, token=self.token)

    def data(self, after: int) -> str:
        """What is new behind the first `after` legs."""
        with self._lock:
            self._read()
            reader = self._reader
            return embedded(
                {
                    **summary(reader),
                    "token": self.token,
                    "legs": reader.legs[after:],
                    "details": reader.details[after:],
                }
            )

    def landscape(self, one: str, two: str) -> str:
        """The loss in the plane of two rides."""
        return self._answer(lambda result: plain_landscape(plane_of_rides(result, one, two)))

    def segment(self, one: str, two: str) -> str:
        """The loss on the straight line between the ends of two legs."""

        def compute(result: Result) -> dict[str, Any]:
            names = [Fingerprint.parse(one), Fingerprint.parse(two)]
            with self._lock:
                points = self._reader.file.ends(names)
            if result.problem is None or any(name not in points for name in names):
                raise ValueError("the problem or one of the two legs is not at hand.")
            return {"loss": loss_between(result.problem, *(points[name] for name in names))}

        return self._answer(compute)

    def _answer(self, compute: Callable[[Result], dict[str, Any]]) -> str:
        """What takes the problem, one at a time."""
        try:
            if self._load is None:
                raise ValueError("the problem of this run is not at hand.")
            with self._computing:
                return embedded(compute(self._load()))
        except Exception as error:  # the problem is the user's own code
            return embedded({"error": one_line(error)})

    def _read(self) -> None:
        """Read what is new. A file that is not there yet, or not yet a run, is waited for."""
        try:
            if self._reader.read() and self._measure is not None:
                self._measure()
                self._reader.read()
        except AnotherRun:
            self._name, self._reader = secrets.token_hex(8), Reader(self.path)
            self._read()
        except (OSError, ValueError) as error:
            self._reader.trouble = f"Waiting for a run: {one_line(error)}."


class Server(ThreadingHTTPServer):
    """Serves one `Watched` at `url`. Port 0 takes any free one."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, watched: Watched, host: str = LOCAL[0], port: int = 8765):
        self.watched, self.host = watched, host
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        if ":" in host:
            self.address_family = socket.AF_INET6
        for number in range(port, port + NUM_PORTS if port else 1):
            try:
                super().__init__((host, number), Handler)
                break
            except OverflowError:
                raise ValueError(f"`port` must be between 0 and 65535, not {port}.") from None
            except socket.gaierror as error:
                raise ValueError(f"`host` must be one of this machine, not {host!r}.") from error
            except OSError as error:
                reason = error
        else:
            raise ValueError(
                f"`port` must be free, but neither {port} nor the {NUM_PORTS - 1} after it can be "
                f"listened to at {host}: {reason.strerror}."
            )

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no news; all else is a line."""
        error = sys.exception()
        if not isinstance(error, OSError):
            print(f"a request failed: {type(error).__name__}: {one_line(error)}", file=sys.stderr)

    @property
    def url(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.server_address[1]}/"

    def is_ours(self, host: str | None) -> bool:
        """Whether a request's Host names this server.

        A name that somebody else controls may point here, an address may not: where other
        interfaces are served, any address will do.
        """
        found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::(\d{1,5}))?", (host or "").lower())
        if found is None or int(found[2] or 80) != self.server_address[1]:
            return False
        name = found[1].strip("[]")
        if name == self.host.lower() or name in LOCAL:
            return True
        with suppress(ValueError):
            return self.host not in LOCAL and bool(ipaddress.ip_address(name))
        return False


class Handler(BaseHTTPRequestHandler):
    """Four addresses: the page, its data, a landscape, the loss between two solutions."""

    server: Server
    server_version, sys_version = "ridgerider", ""
    timeout = SECONDS  # for each part of a request

    def handle(self) -> None:
        """A request that comes byte by byte is cut off as well."""
        self._clock = threading.Timer(SECONDS, self._cut_off)
        self._clock.daemon = True
        self._clock.start()
        try:
            super().handle()
        finally:
            self._clock.cancel()

    def _cut_off(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        self._clock.cancel()  # it is all here
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not self.server.is_ours(hosts[0]):
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
        elif asked.path not in ("/data", "/landscape", "/segment"):
            self._answer(404, "text/plain", "There is nothing here.")
        elif not self.headers.get("X-Ridgerider"):  # another site cannot send this header
            self._answer(403, "text/plain", "Only the page itself may ask.")
        elif asked.path == "/data":
            after = query.get("after", "")
            is_number = after.isascii() and after.isdecimal() and len(after) <= MAX_DIGITS
            self._answer(200, "application/json", watched.data(int(after) if is_number else 0))
        else:
            compute = watched.landscape if asked.path == "/landscape" else watched.segment
            found = compute(query.get("one", ""), query.get("two", ""))
            self._answer(200, "application/json", found)

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
