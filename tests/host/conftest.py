"""Fixtures for the tests of boards behind ssh://."""

from .sshd import _server, server

__all__ = ["_server", "server"]
