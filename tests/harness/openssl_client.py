"""What a client of TLS may do and Python's ssl cannot: ask for a new handshake (TLS
1.2), and change its keys (KeyUpdate of TLS 1.3), as often as it likes.

OpenSSL itself, called by ctypes through the library that Python's ssl is linked
with. It speaks to memory, so that the caller says when its bytes are sent."""

from __future__ import annotations

import _ssl
import ctypes
import socket

from .ports import HOST
from .wire import SSL_REQUEST

# openssl/ssl.h, openssl/tls1.h, openssl/bio.h
SSL_CTRL_SET_MIN_PROTO_VERSION = 123
SSL_CTRL_SET_MAX_PROTO_VERSION = 124
SSL_KEY_UPDATE_REQUESTED = 1
TLS_1_2 = 0x0303
TLS_1_3 = 0x0304
BIO_CTRL_PENDING = 10
READ_BYTES = 65536


def _library():
    library = ctypes.CDLL(getattr(_ssl, "__file__", None))
    pointer, number, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
    for name, result, arguments in (
        ("TLS_client_method", pointer, []),
        ("SSL_CTX_new", pointer, [pointer]),
        ("SSL_CTX_ctrl", long, [pointer, number, long, pointer]),
        ("SSL_CTX_free", None, [pointer]),
        ("SSL_new", pointer, [pointer]),
        ("SSL_free", None, [pointer]),
        ("SSL_set_bio", None, [pointer, pointer, pointer]),
        ("SSL_set_connect_state", None, [pointer]),
        ("SSL_do_handshake", number, [pointer]),
        ("SSL_is_init_finished", number, [pointer]),
        ("SSL_renegotiate", number, [pointer]),
        ("SSL_key_update", number, [pointer, number]),
        ("SSL_write", number, [pointer, ctypes.c_char_p, number]),
        ("BIO_s_mem", pointer, []),
        ("BIO_new", pointer, [pointer]),
        ("BIO_read", number, [pointer, ctypes.c_char_p, number]),
        ("BIO_write", number, [pointer, ctypes.c_char_p, number]),
        ("BIO_ctrl", long, [pointer, number, long, pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Client:
    """A connection to a port, and its TLS, of that version."""

    library = None

    def __init__(self, port: int, version: int) -> None:
        Client.library = Client.library or _library()
        ssl = self.library
        self.sock = socket.create_connection((HOST, port), timeout=30)
        self.sock.sendall(SSL_REQUEST)
        answer = self.sock.recv(1)
        if answer != b"S":
            raise ConnectionError(f"answer to SSLRequest: {answer!r}")
        self.context = ssl.SSL_CTX_new(ssl.TLS_client_method())
        for which in (SSL_CTRL_SET_MIN_PROTO_VERSION, SSL_CTRL_SET_MAX_PROTO_VERSION):
            ssl.SSL_CTX_ctrl(self.context, which, version, None)
        self.session = ssl.SSL_new(self.context)
        self.input, self.output = (ssl.BIO_new(ssl.BIO_s_mem()) for _ in range(2))
        ssl.SSL_set_bio(self.session, self.input, self.output)
        ssl.SSL_set_connect_state(self.session)
        try:
            while ssl.SSL_do_handshake(self.session) != 1:
                self.sock.sendall(self.taken())
                data = self.sock.recv(READ_BYTES)
                if not data:
                    raise ConnectionError("end of file in the handshake")
                ssl.BIO_write(self.input, data, len(data))
            self.sock.sendall(self.taken())
        except OSError:
            self.free()
            self.sock.close()
            raise

    def taken(self) -> bytes:
        """What it has to send."""
        length = self.library.BIO_ctrl(self.output, BIO_CTRL_PENDING, 0, None)
        into = ctypes.create_string_buffer(length)
        got = self.library.BIO_read(self.output, into, length)
        return into.raw[: max(got, 0)]

    def renegotiate(self) -> bytes:
        """The request for a new handshake; TLS 1.2, once a connection."""
        self.library.SSL_renegotiate(self.session)
        self.library.SSL_do_handshake(self.session)
        return self.taken()

    def key_updates(self, count: int) -> bytes:
        """So many changes of its keys, each of which asks for one of the server's; TLS 1.3."""
        for _ in range(count):
            assert self.library.SSL_key_update(self.session, SSL_KEY_UPDATE_REQUESTED) == 1
            assert self.library.SSL_do_handshake(self.session) == 1
        return self.taken()

    def data(self, text: bytes) -> bytes:
        assert self.library.SSL_write(self.session, text, len(text)) == len(text)
        return self.taken()

    def free(self) -> None:
        """Its connection stays."""
        self.library.SSL_free(self.session)
        self.library.SSL_CTX_free(self.context)
