"""What an environment contains: sizes and licenses of its packages, and a list of components (CycloneDX).

    python release/footprint.py             of the environment of this Python, as a table
    python release/footprint.py --json      for programs
    python release/footprint.py --components gemel.cdx.json     the list of components, too

Needs nothing but Python, so that it runs in every environment that the check makes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

TOOLS = {"pip", "setuptools", "wheel"}
"""Not part of what a user installs."""

ALLOWED = (
    *("MIT", "MIT-CMU", "MIT-0", "ISC", "0BSD", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "PSF-2.0"),
    *("Python-2.0", "Zlib", "CC0-1.0", "Unlicense", "MPL-2.0", "BSL-1.0", "HPND", "CNRI-Python"),
)
"""Licenses, by their SPDX names, that a user of gemel may be given without being asked."""

EXCEPTIONS = {
    "psycopg": "LGPL-3.0-only: a library that is imported, in the extra postgres only",
    "psycopg-binary": "as psycopg",
    "psycopg-pool": "as psycopg",
}

SPELLINGS = {
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache-2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache2": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd-3-clause license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "mit license": "MIT",
    "the mit license": "MIT",
    "the mit license (mit)": "MIT",
    "isc license (iscl)": "ISC",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
    "zlib/libpng license": "Zlib",
}
"""What packages without an SPDX expression write."""


def main() -> int:
    """Print the packages; 1 if a license is not allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--components", type=Path, help="a file for the list of components")
    arguments = parser.parse_args()
    rows = packages()
    if arguments.components:
        version = next((row["version"] for row in rows if row["name"] == "gemel"), "unknown")
        moment = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), UTC)
        listed = components(rows, "gemel", version, moment.isoformat())
        arguments.components.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    if arguments.json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return 0
    for row in sorted(rows, key=lambda row: -row["bytes"]):
        sys.stdout.write(f"{row['bytes'] / 1e6:8.1f} MB  {row['name']} {row['version']}  {row['license']}\n")
    sys.stdout.write(f"{sum(row['bytes'] for row in rows) / 1e6:8.1f} MB  {len(rows)} packages\n")
    wrong = not_allowed(rows)
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    return 1 if wrong else 0


def packages() -> list[dict[str, Any]]:
    """Every package of this environment with its version, license, requirements and bytes on disk."""
    found = {}
    for each in distributions():
        name = re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower()
        if name not in TOOLS:
            found[name] = {
                "name": name,
                "version": each.version,
                "license": license_of(each.metadata),
                "requires": sorted(_requires(each)),
                "bytes": _bytes(each),
            }
    return [found[name] for name in sorted(found)]


def license_of(metadata: Any) -> str:  # noqa: ANN401 - a message of importlib.metadata
    """An SPDX expression where the package names its license in any known way, else what it says."""
    expression = metadata.get("License-Expression")
    if expression:
        return str(expression)
    classifiers = metadata.get_all("Classifier") or []
    names = [line.rpartition("::")[2].strip() for line in classifiers if line.startswith("License ::")]
    names = [name for name in names if name != "OSI Approved"]
    text = (metadata.get("License") or "").strip()
    # A license of many lines is its whole text; the classifiers name it.
    if text and "\n" not in text and (not names or text in ALLOWED or text.lower() in SPELLINGS):
        names = re.split(r"\s+(?:and|AND)\s+", text)
    if not names:
        names = [text.partition("\n")[0].strip() or "unknown"]
    return " AND ".join(SPELLINGS.get(name.lower(), name) for name in names)


def not_allowed(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line for each package whose license is not in the list."""
    return [
        f"license of {row['name']}: {row['license']}"
        for row in rows
        if row["name"] not in EXCEPTIONS and not is_allowed(row["license"])
    ]


def is_allowed(expression: str) -> bool:
    """Whether every part of an SPDX expression, or one alternative of it, is in the list."""
    plain = re.sub(r"\s+WITH\s+\S+", "", expression.replace("(", " ").replace(")", " "))
    return all(any(name.strip() in ALLOWED for name in part.split(" OR ")) for part in plain.split(" AND "))


def components(rows: Iterable[Mapping[str, Any]], name: str, version: str, moment: str) -> dict[str, Any]:
    """The list of components of `name` as CycloneDX 1.6; `moment` is that of the commit, so that it is reproducible."""
    others = [row for row in rows if row["name"] != name]
    own = [row for row in rows if row["name"] == name]
    installed = {row["name"]: _address(row["name"], row["version"]) for row in rows}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": moment,
            "component": _component(name, version, own[0]["license"] if own else "Apache-2.0"),
        },
        "components": [_component(row["name"], row["version"], row["license"]) for row in others],
        "dependencies": [
            {
                "ref": installed[row["name"]],
                "dependsOn": [installed[each] for each in row["requires"] if each in installed],
            }
            for row in rows
        ],
    }


def _component(name: str, version: str, license_name: str) -> dict[str, Any]:
    license_entry = (
        {"expression": license_name} if is_allowed(license_name) else {"license": {"name": license_name}}
    )
    address = _address(name, version)
    return {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": version,
        "purl": address,
        "licenses": [license_entry],
    }


def _address(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def _requires(each: Distribution) -> set[str]:
    """Names of requirements outside of extras; a marker of another system is not evaluated."""
    lines = [line for line in each.requires or [] if "extra ==" not in line]
    names = [re.match(r"[A-Za-z0-9._-]+", line) for line in lines]
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}


def _bytes(each: Distribution) -> int:
    sizes = 0
    for path in each.files or []:
        located = each.locate_file(path)
        try:
            sizes += located.stat().st_size  # type: ignore[attr-defined]
        except OSError:  # compiled on another Python, or never
            continue
    return sizes


if __name__ == "__main__":
    sys.exit(main())
