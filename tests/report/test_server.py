"""What strangers may ask of the server behind `watch`: little, briefly, and one name only."""

import http.client
import socket
import threading
import time

import pytest

from ridgerider.report._watch import Handler, Server, Watched
from tests.search.runfile.made_up_runs import make_run


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.sqlite"
    make_run(path, 3)[0].close()
    with Server(Watched(path), port=0) as one:
        thread = threading.Thread(target=one.serve_forever, daemon=True)
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def ask(server, path="/data", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    headers = {"X-Ridgerider": "1", **{name.replace("_", "-"): headers[name] for name in headers}}
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


@pytest.mark.parametrize("after", ["9" * 5000, "٣", "-1", "1e9", "", "0x1", "9" * 13])
def test_numbers_of_any_kind(server, after):
    assert (
        ask(
            server,
            "/data?after=" + after.encode().hex()
            if not after.isascii()
            else f"/data?after={after}",
        ).status
        == 200
    )


def test_hosts(server):
    port = server.server_address[1]
    for host in (
        f"me@127.0.0.1:{port}",
        f"127.0.0.1:{port}/x",
        "evil.example",
        "127.0.0.1",
        "",
        f"127.0.0.1:{port}@evil",
        f"[::1:{port}",
        f"127.0.0.1:{'9' * 50}",
    ):
        assert ask(server, Host=host).status in (400, 421), host
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert ask(server, Host=host).status == 200, host


def test_an_address_that_is_none_is_refused(server):
    host, port = server.server_address[:2]
    with socket.create_connection((host, port), timeout=30) as one:
        one.sendall(f"GET http://[::1/ HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        assert one.recv(1000).split(b"\r\n")[0] == b"HTTP/1.0 400 Bad Request"


def test_a_slow_connection_keeps_nobody_waiting(server):
    with socket.create_connection(server.server_address[:2], timeout=30) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\n")
        began = time.monotonic()
        assert ask(server).status == 200
        assert time.monotonic() - began < Handler.timeout


def test_every_answer_forbids_guessing_and_keeping(server):
    for path, method in (("/", "GET"), ("/data", "GET"), ("/no", "GET"), ("/", "POST"), ("/", "X")):
        answer = ask(server, path, method)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
    many = "&".join(f"a{number}=1" for number in range(50))
    assert ask(server, f"/data?{many}").status == 400
