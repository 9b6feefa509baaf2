from __future__ import annotations

import json

import pytest

from infer.engine import doctor, doctor_kernels, doctor_machine, doctor_software
from infer.engine.doctor_machine import cpu_quota, huge_page_mode, processor
from infer.engine.finding import Finding, State

MEASURED = {
    "why_not": None,
    "ready_seconds": 1.5,
    "error": 0.001,
    "kind": "bfloat16 dot",
    "seconds": 0.001,
    "reference_seconds": 0.012,
    "shares_openmp": True,
}


def test_examination_of_this_machine_finds_nothing_broken():
    findings = {finding.subject: finding for finding in doctor.examine()}
    assert {each.state for each in findings.values()} <= {State.OK, State.NOTE}
    assert {"libraries", "processor", "threads", "memory", "cpu kernels", "gpu", "models"} <= findings.keys()
    assert not any(finding.text.startswith("could not be looked at") for finding in findings.values())
    assert findings["cpu kernels"].state is State.OK
    assert 0 < findings["cpu kernels"].figures["error"] < 0.02
    json.dumps([dict(finding.figures) for finding in findings.values()])


def test_look_that_fails_is_a_finding_and_the_others_go_on(monkeypatch):
    def fail():
        raise ZeroDivisionError("no cores")

    monkeypatch.setattr(doctor, "_LOOKS", (("threads", fail), ("memory", doctor_machine.look_at_memory)))
    first, second = doctor.examine()
    assert (first.subject, first.state) == ("threads", State.NOTE)
    assert "no cores" in first.text
    assert second.subject == "memory"


def test_kernels_that_work_are_compared_with_the_reference():
    kernels, openmp = doctor_kernels.findings("cpu", MEASURED)
    assert kernels.state is openmp.state is State.OK
    assert "12.0 times as fast as the reference" in kernels.text


@pytest.mark.parametrize(
    ("changed", "subject", "word"),
    [
        ({"why_not": "numba is not installed"}, "cpu kernels", "pip install numba"),
        ({"error": 0.5}, "cpu kernels", "--attention-backend reference"),
        ({"shares_openmp": False}, "openmp", "GNU OpenMP"),
    ],
)
def test_kernels_that_are_missing_or_wrong_are_noted_with_what_to_do(changed, subject, word):
    notes = [each for each in doctor_kernels.findings("cpu", MEASURED | changed) if each.state is State.NOTE]
    assert [each.subject for each in notes] == [subject]
    assert word in notes[0].hint


def test_kernels_of_a_gpu_have_no_pool_of_threads():
    [finding] = doctor_kernels.findings("cuda", MEASURED | {"kind": "triton", "shares_openmp": None})
    assert (finding.subject, finding.state) == ("cuda kernels", State.OK)


@pytest.mark.parametrize(
    ("returncode", "stderr", "reason"),
    [(-4, "", "ended by SIGILL"), (1, "Traceback\nImportError: no llvmlite\n", "ImportError: no llvmlite")],
)
def test_kernels_that_end_their_process_do_not_end_ours(returncode, stderr, reason):
    finding = doctor_kernels.failure("cpu", returncode, stderr)
    assert finding.state is State.NOTE
    assert reason in finding.text


def test_processor_is_read_from_its_first_core(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Quick 9\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t: sse\n")
    assert processor(path) == ("Quick 9", frozenset({"fpu", "avx2"}))
    path.write_text("processor\t: 0\nFeatures\t: asimd bf16\n")
    assert processor(path) == ("", frozenset({"asimd", "bf16"}))
    assert processor(tmp_path / "none") == ("", frozenset())


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000\n", None), ("150000 100000\n", 1.5), ("", None), ("x y", None)]
)
def test_quota_of_processors_is_read(tmp_path, text, quota):
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota(tmp_path / "cpu.max") == quota


def test_no_quota_without_a_cgroup(tmp_path):
    assert cpu_quota(tmp_path / "cpu.max") is None


@pytest.mark.parametrize(("threads", "state"), [(1, State.NOTE), (64, State.NOTE), (4, State.OK)])
def test_threads_are_compared_with_the_cores_that_may_be_used(monkeypatch, threads, state):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 8)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    monkeypatch.setattr(doctor_machine, "cpu_quota", lambda _: 4.0)
    [finding] = doctor_machine.look_at_threads()
    assert finding.state is state
    assert ("OMP_NUM_THREADS=4" in finding.hint) == (state is State.NOTE)


def test_mode_of_huge_pages_is_the_one_in_brackets():
    assert huge_page_mode("always [madvise] never\n") == "madvise"


def test_library_that_cannot_be_imported_breaks_every_run(monkeypatch):
    monkeypatch.setattr(doctor_software, "_NEEDED", ("json", "no_such_library"))
    monkeypatch.setattr(doctor_software, "version", lambda name: "1")
    [finding] = doctor_software.look_at_libraries()
    assert finding.state is State.BROKEN
    assert finding.text.startswith("no_such_library cannot be imported: ")


def test_cache_that_nobody_may_write_is_noted(monkeypatch, tmp_path):
    monkeypatch.setenv("INFER_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("os.access", lambda *_: False)
    models, kernels = doctor_software.look_at_cache()
    assert (models.state, kernels.state) == (State.NOTE, State.NOTE)
    assert "INFER_HOME" in models.hint


def test_finding_has_no_figures_unless_given():
    assert Finding("memory", State.OK, "much").figures == {}
