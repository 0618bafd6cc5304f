"""The gold benchmark: which samplers are run, with which learning rate, and what is not run again."""

import json
from dataclasses import replace
from functools import partial

import pytest

import langevin as lv
from benchmarks import gold
from langevin.samplers import SAMPLERS

SHORT = gold.Case(steps=60, chains=2, search_steps=40)


@pytest.fixture
def new(monkeypatch):
    """A sampler that is registered and that nothing else knows of."""

    class New(lv.SGLD):
        """Registered for this test."""

    monkeypatch.setitem(SAMPLERS, "new", New)
    return New


def limit(name, **options):
    """The stability limit at the start of `start`."""
    posterior, train = gold.breast_cancer()
    return gold._stability_limit(partial(SAMPLERS[name], **options), posterior, train, start(posterior, train))


def start(posterior, train):
    return lv.find_map(posterior, train, method="sgd", lr=0.05, steps=200, batch_size=64, progress=False)


def search(name):
    posterior, train = gold.breast_cancer()
    return gold.search_rate(name, SHORT, posterior, train, start(posterior, train))


@pytest.mark.parametrize("posterior", gold.CASES)
def test_every_registered_sampler_has_a_case_unless_it_is_left_out(posterior, new):
    chosen = gold.cases(posterior)
    left_out = {name for name, case in gold.CASES[posterior].items() if case is None}
    assert set(chosen) == set(SAMPLERS) - left_out
    assert chosen["new"] == gold.Case()
    assert list(chosen)[-1] == "new"  # the order of the tables does not change


def test_cases_are_of_registered_samplers():
    assert all(name in SAMPLERS for listed in gold.CASES.values() for name in listed)


def test_the_batch_size_of_sngd_is_that_of_temperature_one():
    case = gold.CASES["logistic"]["sngd"]
    assert lv.samplers.temperature_of(case.lr, 569, case.batch_size) == pytest.approx(1.0, abs=0.05)


def test_a_rate_without_temperature_is_at_most_a_quarter_of_the_stability_limit():
    rate = search("fsgd")
    assert 0 < rate.lr <= limit("fsgd") / 4 * (1 + 1e-6)
    assert rate.note == ""


@pytest.mark.parametrize("name", ["new", "sngd"])
def test_where_no_rule_gives_a_rate_it_is_a_tenth_of_the_stability_limit(name, new, monkeypatch):
    """find_lr may find none; the gradient-noise temperature of SNGD is not known before its first step."""

    def none_found(*args, **options):
        raise ValueError("No learning rate held the temperature.")

    monkeypatch.setattr(gold, "find_lr", none_found)
    rate = search(name)
    assert rate.lr == pytest.approx(limit(name) / 10, rel=1e-5)
    assert "stability limit" in rate.note


def test_a_new_sampler_gets_its_row_and_finished_rows_are_not_run_again(tmp_path, new, monkeypatch):
    references = tmp_path / "references"
    references.mkdir()
    (references / "breast_cancer_nuts.json").write_text(json.dumps({"mean": [0.0] * 31, "std": [1.0] * 31}))
    halves = {"total_variation_between_halves": 0.0, "agreement_between_halves": 1.0}
    (references / "digits_mlp_hmc.json").write_text(json.dumps({"probs": [], **halves}))
    monkeypatch.setattr(gold, "CASES", {"logistic": dict.fromkeys(set(SAMPLERS) - {"sgld", "new"}), "network": {}})
    monkeypatch.setattr(gold, "Case", lambda: SHORT)
    monkeypatch.setattr(gold, "digits_network", lambda: pytest.fail("it has all of its rows"))
    known = gold.Measured("sgld", "", 1.0, 64, 100, 1.0, 0.1, 1.0, *[0.1] * 9)
    network = [vars(replace(known, method=name)) for name in SAMPLERS]
    (tmp_path / "results.json").write_text(json.dumps({"logistic": [vars(known)], "network": network}))

    said = []
    gold.run_gold(tmp_path, references, said.append)
    results = json.loads((tmp_path / "results.json").read_text())
    assert [row["method"] for row in results["logistic"]] == ["sgld", "new"]
    assert results["logistic"][0] == vars(known)
    row = results["logistic"][1]
    assert (row["gradients"], row["batch_size"]) == (120, 64)
    assert row["temperature"] > 0
    assert row["ess_per_1000_gradients"] > 0
    assert "| New" in (tmp_path / "tables.md").read_text()
    assert len(said) == 1


def test_what_can_not_be_run_is_said_and_left_out(tmp_path, new, monkeypatch):
    def refuse(*args):
        raise ValueError("it can't")

    monkeypatch.setattr(gold, "measure", refuse)
    references = tmp_path / "references"
    references.mkdir()
    (references / "breast_cancer_nuts.json").write_text("{}")
    halves = {"total_variation_between_halves": 0.0, "agreement_between_halves": 1.0}
    (references / "digits_mlp_hmc.json").write_text(json.dumps(halves))
    said = []
    gold.run_gold(tmp_path / "out", references, said.append)
    assert "logistic new: left out: it can't" in said
    assert not (tmp_path / "out" / "results.json").exists()
