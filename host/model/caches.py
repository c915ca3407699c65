"""Which caches of the host the board has a copy of, and the copies that a call must bring."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.errors import TensorError
from ...isa.program import Array, Program, Role

if TYPE_CHECKING:
    import torch
    from torch.fx import Node

    from ...rsnlib.host_part import HostPart
    from ...rsnlib.key_spans import KeySpans


class Caches:
    """Keeps track of which caches of keys and values of a compiled model the board holds. The host's tensors are what
    counts; the board's states are copies of them. A call brings a copy of each cache whose tensor is another one than
    in the call before, or was written to since: by a prompt, by the user, or because the last call failed.

    host: the host part of the model. program: the program on the board, of the whole network, a stage or a shard.
    columns: which columns of a host's cache the board keeps, by the name of the state; a cache without an entry is kept
    whole.
    """

    def __init__(self, host: HostPart, program: Program, columns: Mapping[str, slice] | None = None) -> None:
        self._host, self._columns = host, columns or {}
        self._buffers = {b.name: b for b in program.with_role(Role.STATE)}
        self._rings = {name: kind for name, kind in host.rings.items() if name in self._buffers}
        self._held: dict[str, tuple[weakref.ref[torch.Tensor], tuple[int, int]]] = {}
        self._turns: dict[int, int] = {}
        """Rows that caches of a kind have taken since they were brought."""

    def missing(self, environment: dict[Node, Any], spans: KeySpans | None) -> tuple[dict[str, Array], dict[str, int]]:
        """Return what a call must bring: the contents of the states that the board does not have, float32 in the view
        of their buffer, by its name; and the rows that the new token takes in caches of windows, as run-time parameters
        by name. environment: the values of the call, by node of the graph. spans: the keys that the call's masks show,
        None without masks. Until `keep` is called, the board counts as having none. Raises `TensorError` for caches
        that share memory."""
        places = [environment[node].untyped_storage().data_ptr() for node, _ in self._host.states.values()]
        if len(set(places)) < len(places):
            raise TensorError("two caches share their memory; the machine keeps a copy of each")
        held, self._held = self._held, {}
        brought = {}
        for name in self._buffers:
            node, _ = self._host.states[name]
            tensor: torch.Tensor = environment[node]
            known = held.get(name)
            if known is None or known[0]() is not tensor or known[1] != _state(tensor):
                brought[name] = self._stored(name, environment)
        rows: dict[str, int] = {}
        for kind in dict.fromkeys(self._rings.values()):
            rows |= self._turned(kind, environment, spans, brought)
        return brought, rows

    def _turned(
        self, kind: int, environment: dict[Node, Any], spans: KeySpans | None, brought: dict[str, Array]
    ) -> dict[str, int]:
        """Choose the row that the new token takes in the caches of one kind, which have as many rows as a window.

        In the host's copies all rows move up by one for it. The board's copies need not move: while all rows count, the
        new row replaces the oldest one. Otherwise their order matters, and they are brought again, with their rows
        moved up.
        """
        names = [name for name, of in self._rings.items() if of == kind]
        count = self._host.seq_of(names[0])
        own = None if spans is None else spans.others.get(kind) if kind else spans
        starts = None if own is None else own.starts
        whole = own is None or not len(own.lengths) or bool((own.lengths == count).all())
        whole = whole and (starts is None or not starts.any())
        if not whole or any(name in brought for name in names):
            for name in names:
                brought[name] = self._stored(name, environment)
            self._turns[kind] = 0
        row = self._turns[kind] % count
        if whole:
            self._turns[kind] += 1
        else:
            row = count - 1
            for name in names:
                brought[name] = np.roll(brought[name], -1, axis=1)
        return {f"row{kind or ''}[{b}]": row for b in range(self._host.batch)}

    def keep(self, environment: dict[Node, Any]) -> None:
        """Note, after a call that succeeded, that the board's states equal the host's tensors. environment: the values
        of that call, by node of the graph. Tensors of inference mode are not noted: each call brings them."""
        for name in self._buffers:
            node, _ = self._host.states[name]
            tensor = environment[node]
            state = _state(tensor)
            if state is not None:
                self._held[name] = weakref.ref(tensor), state

    def _stored(self, name: str, environment: dict[Node, Any]) -> Array:
        """A cache in the columns of its buffer."""
        view = self._buffers[name].view
        assert view is not None
        out = np.zeros(view, np.float32)
        own = self._host.state(name, environment)[..., self._columns.get(name, slice(None))]
        # All heads are stored alike, so that those of a shard lie as the first ones of the whole cache.
        out[..., self._host.stored_columns[name][: own.shape[-1]]] = own
        return out


def _state(tensor: torch.Tensor) -> tuple[int, int] | None:
    """What changes with a write to a tensor: its memory and its write counter. None for a tensor of inference mode,
    which counts no writes: it is brought in each call."""
    return None if tensor.is_inference() else (tensor.data_ptr(), tensor._version)
