"""Changes one thing at a time in a module, and looks whether its tests notice.

    pip install -c constraints.txt -e '.[test,mutation]'
    python tests/mutation/mutate.py                        # every module of MODULES, one table
    python tests/mutation/mutate.py engine/block_pool.py

mutmut makes the changes and runs the tests. It takes the name of a module from where its file lies, so it works on a
copy in which the rooms lie under `infer/`. `survivors.toml` says of each change that no test notices why that is right;
one that it does not know is printed as an entry for it. The command fails where there is one, or too few are noticed.

What mutmut leaves out: decorated functions, hence properties, and what stands outside functions.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SURVIVORS = Path(__file__).with_name("survivors.toml")
ROOMS = ("cli", "engine", "io", "kernels")
MIN_SHARE = 0.85

_SCHEDULER_TESTS = [
    "tests/engine/test_scheduler.py",
    "tests/engine/test_scheduling_policies.py",
    "tests/engine/test_scheduler_reset.py",
    "tests/engine/test_forking.py",
    "tests/engine/test_scheduler_drafts.py",
    "tests/engine/test_admission.py",
    "tests/engine/test_host_tier.py",
    "tests/engine/test_step_record.py",
    "tests/engine/test_scheduler_properties.py",
    "tests/engine/test_scheduler_machine.py",
]
_POOL_TESTS = [
    "tests/engine/test_block_pool.py",
    "tests/engine/test_step_record.py",
    "tests/engine/test_scheduler_reset.py",
]
MODULES = {
    "engine/block.py": ["tests/engine/test_block.py", *_POOL_TESTS],
    "engine/block_pool.py": _POOL_TESTS,
    "engine/kv_cache_manager.py": [
        "tests/engine/test_kv_cache_manager.py",
        "tests/engine/test_sliding_window.py",
        *_SCHEDULER_TESTS,
    ],
    "engine/scheduler.py": _SCHEDULER_TESTS,
    "io/journal.py": ["tests/io/test_journal.py"],
    "io/merge.py": ["tests/io/test_merge.py"],
    "io/publish.py": ["tests/io/test_publish.py"],
    "io/run_state.py": ["tests/io/test_run_state.py"],
    "io/suspects.py": ["tests/io/test_suspects.py"],
}
"""Each with the tests that have to notice: few and fast, the fastest first."""

SETTINGS = """
[tool.mutmut]
source_paths = ["infer"]
only_mutate = ["infer/{module}"]
also_copy = ["conftest.py"]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "no:xdist"]
pytest_add_cli_args_test_selection = {tests}
timeout_constant = 2.0
timeout_multiplier = 6.0
"""
CONFTEST = '''"""The same examples in every run, in the order of the files; one that fails is not made smaller."""

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "mutation",
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("mutation")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: {tests}.index(item.nodeid.partition("::")[0]))
'''


@dataclass(frozen=True, slots=True)
class Survivor:
    """A change that no test notices."""

    module: str
    function: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Result:
    """Of one module: how many mutants ended how, and those that lived."""

    module: str
    by_status: Counter[str]
    survivors: list[Survivor]

    @property
    def share_noticed(self) -> float:
        return (self.by_status["killed"] + self.by_status["timeout"]) / self.by_status.total()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}; default: all")
    parser.add_argument("--max-children", type=int, default=1, help="mutants tested at a time")
    options = parser.parse_args()
    if unknown := set(options.modules) - MODULES.keys():
        parser.error(f"not in MODULES: {', '.join(sorted(unknown))}")
    results = [mutate(module, options.max_children) for module in options.modules or MODULES]
    print_table(results)
    known = read_survivors()
    num_open = sum(report(result, known) for result in results)
    return 0 if num_open == 0 and all(result.share_noticed >= MIN_SHARE for result in results) else 1


def mutate(module: str, max_children: int) -> Result:
    """Test all mutants of `module` in a fresh copy of the tree."""
    print(f"mutating {module}", file=sys.stderr, flush=True)
    folder = ROOT / "build" / "mutation" / module.removesuffix(".py").replace("/", ".")
    copy_tree(module, folder)
    run_mutmut(folder, "run", "--max-children", str(max_children))
    statuses = dict(re.findall(r"^ +(\S+): (.+)$", run_mutmut(folder, "results", "--all", "true"), re.MULTILINE))
    lived = [name for name, status in statuses.items() if status not in ("killed", "timeout")]
    survivors = [parse_survivor(module, name, run_mutmut(folder, "show", name)) for name in lived]
    return Result(module, Counter(statuses.values()), survivors)


def copy_tree(module: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    # Python takes note, when it starts, of what it finds in its path.
    (folder / "mutants").mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / "infer" / room, ignore=ignore)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=ignore)
    settings = SETTINGS.format(module=module, tests=MODULES[module])
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + settings)
    (folder / "conftest.py").write_text(CONFTEST.format(tests=MODULES[module]))


def run_mutmut(folder: Path, *arguments: str) -> str:
    """What it prints. Processes that the tests start import the mutated copy, too."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "mutants")}
    command = [Path(sys.executable).with_name("mutmut"), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"mutmut {arguments[0]} failed in {folder}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def parse_survivor(module: str, name: str, diff: str) -> Survivor:
    """From the name that mutmut gives a mutant, `infer.engine.block_pool.xǁBlockPoolǁcheck__mutmut_3`, and its diff."""
    function = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    function = function.removeprefix("x_") if function.startswith("x_") else ".".join(function.split("ǁ")[1:])
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    before, after = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    return Survivor(module, function, before, after)


def read_survivors() -> set[Survivor]:
    """Those that are known. An entry can name several changes of a line, and has to give a reason."""
    known = set()
    for entry in tomllib.loads(SURVIVORS.read_text())["survivor"]:
        assert entry["reason"], f"without a reason: {entry}"
        known |= {Survivor(entry["module"], entry["function"], entry["before"], after) for after in entry["after"]}
    return known


def print_table(results: list[Result]) -> None:
    columns = ("mutants", "killed", "timeout", "survived", "no tests", "noticed")
    print(f"{'module':24}", *(f"{name:>9}" for name in columns))
    for result in results:
        counts = [result.by_status.total(), *(result.by_status[name] for name in columns[1:-1])]
        print(f"{result.module:24}", *(f"{count:9,}" for count in counts), f"{result.share_noticed:9.1%}")


def report(result: Result, known: set[Survivor]) -> int:
    """Print what `survivors.toml` lacks and what it need not have. Returns how many these are."""
    unknown = [survivor for survivor in result.survivors if survivor not in known]
    gone = [each for each in known if each.module == result.module and each not in result.survivors]
    for survivor in unknown:
        print("\n[[survivor]]")
        for key in ("module", "function", "before"):
            print(f"{key} = '''{getattr(survivor, key)}'''")
        print(f"after = ['''{survivor.after}''']\nreason = \"\"")
    for survivor in gone:
        print(f"\nno longer there, in {SURVIVORS.name}: {survivor}")
    return len(unknown) + len(gone)


if __name__ == "__main__":
    sys.exit(main())
