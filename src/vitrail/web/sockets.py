"""Bind the listening socket before anything heavy is imported, so that a port in use is reported at once. Torch-free."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from vitrail.errors import VitrailError

LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")  # names of this machine that no other can reach


@contextmanager
def bind_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a listening socket; early connections wait until the server starts."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise VitrailError(f"--host must be an address of this machine, got {host!r} ({error}); try 127.0.0.1") from None
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(2048)
        except OSError as error:
            raise VitrailError(_bind_error(error, host, port, family)) from None
        yield listener


def socket_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _bind_error(error: OSError, host: str, port: int, family: socket.AddressFamily) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host must be an address of this machine, got {host}; try 127.0.0.1, or 0.0.0.0 for all of them"
    with socket.socket(family) as other:
        other.bind((host, 0))
        free = other.getsockname()[1]
    problem = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
    return f"port {port} of {host} {problem}; try --port {free}, which is free"
