"""Ctrl-C, wherever it comes: the last line says where the run is and how to go on. Bars count from where they begin."""

import pytest

import langevin as lv
from langevin.inference import engine as engines
from langevin.inference.autopilot import budget, rates, stages, warm_start
from langevin.storage.status import describe
from tests.helpers import toy_data, toy_posterior
from tests.inference.autopilot.test_autopilot import linear_posterior, regression, small


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(warm_start, "STEPS", 100)
    monkeypatch.setattr(warm_start, "EPOCHS", 1)
    monkeypatch.setattr(budget, "RATE_STEPS", 100)


def interrupted_in(stage: str, monkeypatch) -> None:
    """Ctrl-C in the first leg of a stage."""
    advance = stages.advance

    def pressed(engine, store, until, **options):
        if options["title"] == stage:

            def press(*_):
                raise KeyboardInterrupt

            monkeypatch.setattr(engines.Readings, "record", press)
        advance(engine, store, until, **options)

    monkeypatch.setattr(stages, "advance", pressed)


def test_a_run_by_hand_says_how_to_go_on(tmp_path, capsys) -> None:
    def press(info):
        if info.step == 7:
            raise KeyboardInterrupt

    options = {"lr": 1e-3, "steps": 20, "progress": False, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt) as raised:
        lv.sample(toy_posterior(), toy_data(), lv.SGLD, callbacks=[press], **options)
    expected = (
        f"Stopped at step 7 of 20; resume from {tmp_path / 'run'}: lv.resume('{tmp_path / 'run'}', posterior, data)."
    )
    assert str(raised.value) == expected  # the last line of the traceback
    assert capsys.readouterr().err.splitlines() == [expected]
    assert len(lv.resume(tmp_path / "run", toy_posterior(), toy_data(), progress=False)) > 0


@pytest.mark.parametrize(
    ("title", "stage"),
    [("warm start", "warm start"), ("burn-in", "burn-in"), ("settling", "burn-in"), ("sampling", "sampling")],
)
def test_every_stage_says_how_to_go_on_with_the_run(tmp_path, monkeypatch, capsys, title, stage) -> None:
    with monkeypatch.context() as patched:
        interrupted_in(title, patched)
        with pytest.raises(KeyboardInterrupt) as raised:
            small(tmp_path / "run")
    path = tmp_path / "run"
    expected = f"Stopped in the stage '{stage}'; resume from {path}: lv.resume('{path}', posterior, data)."
    assert str(raised.value) == expected
    assert capsys.readouterr().err.splitlines() == [expected]
    _, rows, remarks = describe(path)
    assert any(line.startswith(f"autopilot, stage: {stage}") for line in remarks)
    assert len(rows) == 3  # a head, and the chains of the stage


def test_the_search_for_a_rate_says_how_to_go_on(tmp_path, monkeypatch) -> None:
    def press(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(rates, "find_lr", press)
    with pytest.raises(KeyboardInterrupt, match="stage 'search for the rate'; resume from"):
        small(tmp_path / "run", sampler=lv.SGLD)
    assert "autopilot, stage: search for the rate" in describe(tmp_path / "run")[2]


def test_a_run_in_memory_can_only_go_on_from_its_samples(monkeypatch, capsys) -> None:
    with monkeypatch.context() as patched:
        interrupted_in("burn-in", patched)
        with pytest.raises(KeyboardInterrupt, match='nothing was written; with out="runs/mine" it can be resumed'):
            small(None)

    def press(info):
        if info.step == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="lv.resume") as raised:
        small(None, callbacks=[press])
    path = str(raised.value).split("'")[3]
    again = lv.resume(path, linear_posterior(), regression(), progress=False)
    assert min(again.steps) < 30 < max(again.steps)
    assert describe(path)[2][-2] == "autopilot, stage: done"


def test_the_rate_of_a_bar_is_that_of_its_own_steps(monkeypatch) -> None:
    """Of a leg, the steps of the legs before; of a resumed run, those that it had."""
    bars = []

    class Bar(engines.tqdm):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            bars.append((self, options["initial"], options["total"]))

    monkeypatch.setattr(engines, "tqdm", Bar)
    options = {"lr": 1e-3, "steps": 20, "chains": 2, "mode": "sequential"}
    run = lv.sample(toy_posterior(), toy_data(), lv.SGLD, **options)
    lv.resume(run, toy_posterior(), toy_data(), steps=30)
    assert [(initial, total, bar.n) for bar, initial, total in bars] == [(0, 40, 40), (40, 60, 60)]
