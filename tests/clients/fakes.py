"""Servers that answer whatever a test says, where the real one never would."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc

#: Status, headers and body of a reply.
Reply = tuple[int, Mapping[str, str], bytes]


@contextlib.contextmanager
def fake_rest(*replies: Reply) -> Iterator[str]:
    """The address of a server that gives each request the next reply, and the last one from then on."""
    left = list(replies)

    class FakeHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            # A client that has enough closes the connection.
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), FakeHandler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def fake_grpc(answer: Callable[[bytes, grpc.ServicerContext], bytes]) -> Iterator[str]:
    """The address of a server that answers every call with ``answer``'s bytes."""

    class FakeService(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(answer)

    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, [FakeService()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"grpc://127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
