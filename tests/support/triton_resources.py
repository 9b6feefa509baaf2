"""The table of what the Triton kernels use: `tests/kernels/triton_resources.txt`.

    python tests/support/triton_resources.py            prints what differs from the table
    python tests/support/triton_resources.py --update   writes the table anew
    python tests/support/triton_resources.py --only "decode bf16 d128" --capability 90

A line is a kernel that a case launches, compiled for an architecture. Registers depend on the version of Triton, which
the table names.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import astuple, fields
from itertools import product
from pathlib import Path

import triton
import triton_attention_cases
import triton_operator_cases
from triton_aot import Resources, compile_launches

CASES = triton_attention_cases.cases() | triton_operator_cases.cases()
QUICK = triton_attention_cases.QUICK + triton_operator_cases.QUICK
"""What every change is compared with: cases and capabilities. The others are `slow`."""
SHOWN_IN = triton_attention_cases.SHOWN_IN
"""Kernels that go with others, and the cases that show them."""
CAPABILITIES = (80, 90)
TABLE = Path(__file__).parents[1] / "kernels" / "triton_resources.txt"

Key = tuple[str, str, int]
"""Case, kernel, capability."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the table anew")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--capability", type=int, choices=CAPABILITIES, nargs="+", default=CAPABILITIES)
    parser.add_argument("--cases", type=json.loads, help="JSON list of [case, capability], for tests: prints JSON")
    options = parser.parse_args()
    if options.cases is not None:
        for case, capability in options.cases:
            for key, used in compiled(case, capability).items():
                print(json.dumps([key, astuple(used)]), flush=True)
        return
    version, table = read_table() if TABLE.exists() else ("", {})
    names = [name for name in CASES if name.startswith(options.only)]
    wanted = [pair for pair in every() if pair[0] in names and pair[1] in options.capability]
    found: dict[Key, Resources] = {}
    for name, capability in wanted:
        found |= compiled(name, capability)
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    kept = {key: used for key, used in table.items() if key[0] in CASES and (key[0], key[2]) not in wanted}
    if options.update:
        TABLE.write_text(as_text(kept | found))
    if version not in ("", triton.__version__):
        print(f"the table is of triton {version}, this is {triton.__version__}")
    print("\n".join(differences(table, found)) or "no difference")


def every() -> list[tuple[str, int]]:
    """Cases and the capabilities that they are compiled for."""
    return [pair for pair in product(CASES, CAPABILITIES) if triton_operator_cases.is_served(*pair)]


def compiled(case: str, capability: int) -> dict[Key, Resources]:
    launches = compile_launches(CASES[case], capability, lambda kernel: case in SHOWN_IN.get(kernel, (case,)))
    return {(case, kernel, capability): used for kernel, used in launches.items()}


def differences(table: dict[Key, Resources], found: dict[Key, Resources]) -> list[str]:
    """A line for each kernel of `found` that the table has otherwise or not at all."""
    return [
        f"{_name(key)}: {table.get(key, 'not in the table')}\n{' ' * len(_name(key))}  {used}"
        for key, used in found.items()
        if table.get(key) != used
    ]


def as_text(table: dict[Key, Resources]) -> str:
    rows = [("kernel", "case", "sm", *(field.name for field in fields(Resources)))]
    rows += [
        (kernel, case, str(capability), *map(str, astuple(used)))
        for (case, kernel, capability), used in sorted(table.items(), key=lambda item: (item[0][1], item[0]))
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return f"triton {triton.__version__}\n" + "\n".join(lines) + "\n"


def read_table() -> tuple[str, dict[Key, Resources]]:
    """The version of Triton, and what was found with it."""
    first, _, *lines = TABLE.read_text().splitlines()
    table = {}
    for line in lines:
        kernel, case, capability, *numbers = (cell.strip() for cell in line.split("|"))
        table[case, kernel, int(capability)] = Resources(*map(int, numbers))
    return first.removeprefix("triton "), table


def _name(key: Key) -> str:
    case, kernel, capability = key
    return f"{kernel} of {case} for sm_{capability}"


if __name__ == "__main__":
    main()
