"""`langevin doctor --device`: on the CPU nothing is wrong, and what is wrong is found."""

import pytest
import torch

from langevin.core import random
from langevin.inference import device_check
from langevin.inference.device_check import examine_device

CHECKS = {"device", "noise", "mini-batches", "moments", "updates", "a run", "speed"}


def wrong(findings):
    return {finding.check for finding in findings if finding.level == "error"}


def test_the_cpu_is_fine():
    findings = examine_device("cpu", weights=10_000)
    assert {finding.check for finding in findings} == CHECKS
    assert {finding.level for finding in findings} == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (lambda out, real, **where: real(out, **where).mul_(2**0.5), {"noise", "moments"}),
        (lambda out, real, **where: 1 / 0, {"noise", "speed", "moments"}),
    ],
)
def test_broken_noise_is_found(broken, found, monkeypatch):
    rows, normal = random.normal_rows, random.normal
    monkeypatch.setattr(random, "normal_rows", lambda out, **where: broken(out, rows, **where))

    def drawn(count, *, device="cpu", **where):
        if where.get("seed") != device_check._WHERE["seed"]:
            return normal(count, device=device, **where)
        where.pop("chain")
        return random.normal_rows(torch.empty(1, count, device=device), chains=[0], **where)[0]

    monkeypatch.setattr(random, "normal", drawn)
    findings = examine_device("cpu", weights=10_000)
    assert found <= wrong(findings)
    assert findings[-1].check == "what to do"
    assert "collect_env" in findings[-1].message


@pytest.mark.slow
def test_a_run_that_does_not_repeat_itself_is_found(monkeypatch):
    real, calls = device_check.sample, []

    def other(*args, **options):
        calls.append(1)
        return real(*args, **options, seed=len(calls))

    monkeypatch.setattr(device_check, "sample", other)
    levels = [finding.level for finding in examine_device("cpu", weights=10_000) if finding.check == "a run"]
    assert levels == ["warning", "error"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there():
    (finding,) = examine_device("cuda")
    assert finding.level == "error"
    assert "cuda can't be used" in finding.message
