"""A client that speaks GSSAPI encryption by itself: what libpq would never send.

It calls MIT's library; fe-secure-gssapi.c says what stands on the wire: packets, each
with its length before it, of tokens first and of wrapped messages then."""

from __future__ import annotations

import ctypes
import struct

from harness.wire import GSSENC_REQUEST, Message, Wire

# gssapi/gssapi.h: the flags that libpq asks for; mutual, replay, sequence, confidentiality, integrity
FLAGS = 2 | 4 | 8 | 16 | 32
CONTINUE_NEEDED = 1


class Buffer(ctypes.Structure):
    _fields_ = (("length", ctypes.c_size_t), ("value", ctypes.c_void_p))

    @classmethod
    def of(cls, data: bytes) -> Buffer:
        kept = ctypes.create_string_buffer(data, max(len(data), 1))
        made = cls(len(data), ctypes.cast(kept, ctypes.c_void_p))
        made.kept = kept
        return made

    def bytes(self) -> bytes:
        return ctypes.string_at(self.value, self.length)


class Oid(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint32), ("elements", ctypes.c_void_p))


# GSS_C_NT_HOSTBASED_SERVICE, 1.2.840.113554.1.2.1.4
_ELEMENTS = ctypes.create_string_buffer(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04", 10)
HOSTBASED_SERVICE = Oid(10, ctypes.cast(_ELEMENTS, ctypes.c_void_p))


class Encrypted:
    """A connection whose encryption has begun, by the ticket in the environment."""

    def __init__(self, host: str, port: int, service: str = "postgres@localhost") -> None:
        self.library = ctypes.CDLL("libgssapi_krb5.so.2")
        self.minor = ctypes.c_uint32()
        self.context = ctypes.c_void_p()
        self.received = b""
        self.wire = Wire.open(host, port, plain=True)
        self.wire.send(GSSENC_REQUEST)
        self.answer = self.wire.sock.recv(1)
        assert self.answer == b"G", self.answer
        self._negotiate(service)

    def _call(self, name: str, *arguments: object) -> int:
        result = getattr(self.library, name)(ctypes.byref(self.minor), *arguments)
        assert result & 0xFFFF0000 == 0, f"{name}: {result:x}, {self.minor.value}"
        return result

    def _negotiate(self, service: str) -> None:
        name, token = ctypes.c_void_p(), b""
        self._call(
            "gss_import_name",
            ctypes.byref(Buffer.of(service.encode())),
            ctypes.byref(HOSTBASED_SERVICE),
            ctypes.byref(name),
        )
        while True:
            said, output = Buffer.of(token), Buffer()
            result = self._call(
                "gss_init_sec_context", None, ctypes.byref(self.context), name, None, FLAGS, 0, None,
                ctypes.byref(said), None, ctypes.byref(output), None, None,
            )  # fmt: skip
            if output.length > 0:
                self._send_packet(output.bytes())
            if result != CONTINUE_NEEDED:
                return
            token = self._packet()

    def _send_packet(self, packet: bytes) -> None:
        self.wire.send(struct.pack("!I", len(packet)) + packet)

    def _exactly(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self.wire.sock.recv(length - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def _packet(self) -> bytes:
        return self._exactly(struct.unpack("!I", self._exactly(4))[0])

    def wrapped(self, data: bytes) -> bytes:
        output = Buffer()
        self._call("gss_wrap", self.context, 1, 0, ctypes.byref(Buffer.of(data)), None, ctypes.byref(output))
        packet = output.bytes()
        return struct.pack("!I", len(packet)) + packet

    def send(self, data: bytes) -> None:
        self.wire.send(self.wrapped(data))

    def _more(self) -> None:
        output = Buffer()
        packet = Buffer.of(self._packet())
        self._call("gss_unwrap", self.context, ctypes.byref(packet), ctypes.byref(output), None, None)
        self.received += output.bytes()

    def until(self, *types: str) -> list[Message]:
        """The messages up to one of these, or to the end of the connection."""
        found: list[Message] = []
        while not found or found[-1].type not in types:
            while len(self.received) < 5 or len(self.received) < 1 + struct.unpack("!I", self.received[1:5])[0]:
                try:
                    self._more()
                except (EOFError, ConnectionResetError):
                    return found
            length = 1 + struct.unpack("!I", self.received[1:5])[0]
            found.append(Message(chr(self.received[0]), self.received[5:length]))
            self.received = self.received[length:]
        return found

    def close(self) -> None:
        self.wire.close()

    def __enter__(self) -> Encrypted:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
