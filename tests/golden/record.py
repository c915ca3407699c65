"""Compare all programs of `programs` with what was recorded of them, or record them anew."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .programs import RECORD, cases, differences, facts, fingerprints


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="make golden.json anew")
    given = parser.parse_args()
    now: dict[str, Any] = {"overlays": fingerprints(), **{name: facts(make()) for name, make in cases().items()}}
    recorded = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    changed = list(differences(recorded, now))
    for line in changed:
        print(line)
    print(f"{len(now)} entries, {len(changed)} differences")
    if given.write:
        RECORD.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
