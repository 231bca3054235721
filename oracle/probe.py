"""Run by the oracle's own Python, with the standard library alone: print what that environment really holds, as JSON.

    python probe.py DISTRIBUTION

`versions`: every distribution's version. `changed`, `missing`: files of DISTRIBUTION that differ from the sha256 its
wheel recorded, or are gone.
"""

import base64
import hashlib
import importlib.metadata
import json
import platform
import sys
from pathlib import Path


def main(name: str) -> None:
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        found = distribution.metadata["Name"]
        if found:
            versions.setdefault(found, distribution.version)
    changed, missing = [], []
    if name in versions:
        for file in importlib.metadata.files(name) or []:
            if file.hash is None or file.hash.mode != "sha256":
                continue
            try:
                with Path(str(file.locate())).open("rb") as content:
                    digest = hashlib.file_digest(content, "sha256").digest()
            except FileNotFoundError:
                missing.append(str(file))
                continue
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
                changed.append(str(file))
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "versions": versions,
                "changed": sorted(changed),
                "missing": sorted(missing),
            }
        )
    )


main(sys.argv[1])
