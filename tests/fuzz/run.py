"""Fuzz one target for as long as it is let.

    python tests/fuzz/run.py jsonl --seconds 300
    python tests/fuzz/run.py --list

By atheris, which is guided by coverage, where it is installed (`pip install atheris`; wheels for Linux on x86-64);
else, or with --random, by random changes of the seeds. An input that finds a fault is written to `fuzz-TARGET...` in
the current directory, and `--input FILE` runs it again. What is found becomes a test of the file that was at fault.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import tempfile
import time
import types
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "support"))
sys.path.insert(0, str(FOLDER))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?")
    parser.add_argument("--list", action="store_true", help="the names of the targets")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the random changes")
    parser.add_argument("--random", action="store_true", help="without atheris")
    parser.add_argument("--input", type=Path, help="one input, once")
    options = parser.parse_args()
    import targets

    if options.list or options.target not in targets.TARGETS:
        print("\n".join(targets.TARGETS))
        return 0 if options.list else 2
    target, seeds = targets.TARGETS[options.target]
    if options.input is not None:
        target(options.input.read_bytes())
        return 0
    if importlib.util.find_spec("atheris") is not None and not options.random:
        run_atheris(options.target, target, seeds, options.seconds)
        return 0
    return run_random(options.target, target, seeds, options.seconds, options.seed)


def run_atheris(name, target, seeds, seconds) -> None:
    import atheris

    # An editable install is found by a finder of its own, which atheris' import hook does not see.
    for function in functions_of_ours():
        atheris.instrument_func(function)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds):
            Path(corpus, str(number)).write_bytes(seed)
        arguments = [f"-max_total_time={seconds}", "-max_len=16384", "-timeout=20", f"-artifact_prefix=fuzz-{name}-"]
        atheris.Setup([sys.argv[0], *arguments, corpus], target)
        atheris.Fuzz()


def functions_of_ours():
    """Every function and method of `infer` that has been imported."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("infer."):
            continue
        holders = [module, *(each for each in vars(module).values() if isinstance(each, type))]
        for holder in holders:
            for value in vars(holder).values():
                function = getattr(value, "__func__", value)
                if isinstance(function, types.FunctionType) and function.__module__ == name:
                    yield function


def run_random(name, target, seeds, seconds, seed) -> int:
    from mutation import mutate

    generator, end, num_inputs = random.Random(seed), time.monotonic() + seconds, 0
    pool = list(seeds)
    while time.monotonic() < end:
        data = mutate(generator.choice(pool), generator)
        if generator.random() < 0.02 and len(pool) < 200:
            # Changes upon changes, without coverage to say which are worth it.
            pool.append(data)
        num_inputs += 1
        try:
            target(data)
        except BaseException:
            Path(f"fuzz-{name}.bin").write_bytes(data)
            print(f"{name}: input {num_inputs} with --seed {seed} finds a fault, see fuzz-{name}.bin", file=sys.stderr)
            raise
    print(f"{name}: {num_inputs:,} inputs in {seconds} s, no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
