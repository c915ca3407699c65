"""A machine for mapped programs: a mesh of equal tiles, as a TOML file states it.

```toml
rows = 4
columns = 4
in_ports = 2        # of each tile: streams and tensors that it takes
out_ports = 2
memory = 65536      # bytes of each tile
load_ports = 8      # at the edge of the mesh: transfers from memory at a time
store_ports = 8
```
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ...base.errors import RsnError

SIZES = 1 << 6
"""Limit of rows, and of columns."""

LARGEST = 1 << 50
"""Limit of ports and bytes."""


class MeshError(RsnError, ValueError):
    """The description of a mesh is wrong. The message names the file and the field."""


@dataclass(frozen=True)
class MeshDescription:
    """A mesh of rows times columns equal tiles. in_ports, out_ports: ports of each tile for streams and tensors.
    memory: bytes of each tile. load_ports, store_ports: ports of the whole mesh to the memory off the chip."""

    name: str = "mesh4x4"
    rows: int = 4
    columns: int = 4
    in_ports: int = 2
    out_ports: int = 2
    memory: int = 1 << 16
    load_ports: int = 8
    store_ports: int = 8

    @property
    def tiles(self) -> int:
        """How many tiles the mesh has."""
        return self.rows * self.columns

    def tiled(self, limits: Mapping[str, int]) -> MeshDescription:
        """Return the same mesh with other limits of its tiles. limits: ports or bytes, by the name of the field
        (`in_ports`, `out_ports` or `memory`). Raises `TypeError` for a name that no field has."""
        return MeshDescription(**{**asdict(self), **limits})


MESHES = {"mesh4x4": MeshDescription()}
"""Meshes with names."""


def mesh(name: str) -> MeshDescription:
    """Return a mesh, given its name or the path of a TOML file. Raises `MeshError` for another name, for a file that
    cannot be read or is no TOML, and for wrong fields.
    """
    if name in MESHES:
        return MESHES[name]
    path = Path(name)
    if path.suffix != ".toml":
        raise MeshError(f"no machine {name}: {', '.join(MESHES)}, or a file (*.toml)")
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MeshError(f"{name}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MeshError(f"{name}: this is not TOML: {error}") from None
    known = [field.name for field in fields(MeshDescription)]
    for key, value in given.items():
        if key not in known:
            raise MeshError(f"{name}: no field {key}; fields: {', '.join(known)}")
        if key == "name":
            if not isinstance(value, str):
                raise MeshError(f"{name}: name must be a text")
            continue
        most = SIZES if key in ("rows", "columns") else LARGEST
        if type(value) is not int or not 1 <= value <= most:
            raise MeshError(f"{name}: {key} = {value}; it must be a whole number, at least 1 and at most {most}")
    return MeshDescription(**{"name": path.stem, **given})
