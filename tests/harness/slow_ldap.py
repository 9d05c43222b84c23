"""An LDAP server that lets everybody in, after a while: a login that is the server's work, and takes long."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from .ports import HOST

# BindResponse to message 1: success, no DN, no words.
SUCCESS = bytes.fromhex("300c02010161070a010004000400")


class SlowLdap:
    """`most`: so many were asked about at one time."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.most = 0
        self._asked = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server((HOST, 0), backlog=200)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def line(self, user: str) -> str:
        return f'host all {user} all ldap ldapserver={HOST} ldapport={self.port} ldapprefix="cn="'

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.recv(4096)
            with self._lock:
                self._asked += 1
                self.most = max(self.most, self._asked)
            time.sleep(self.delay_s)
            with self._lock:
                self._asked -= 1
            client.sendall(SUCCESS)
            client.recv(4096)

    def __enter__(self) -> SlowLdap:
        return self

    def __exit__(self, *_: object) -> None:
        # wakes accept()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
