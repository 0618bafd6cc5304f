"""Every argument of every public function, given what it can't be: it is refused by a sentence that names it.

The sentence has to come from langevin itself, not from deep inside torch, and nonsense must not be accepted in silence.
What may be given follows from the annotation; what goes beyond it (a negative number may be one) is listed here.
"""

import collections.abc
import inspect
import math
import traceback
import types
import typing
import warnings
from functools import cache, partial
from pathlib import Path

import torch
from torch import nn

import langevin as lv
from langevin import approximations, bandits, evaluation, likelihoods, models, preconditioners, priors, samplers
from langevin.core import arguments, schedules
from langevin.core.likelihoods import LIKELIHOODS
from langevin.core.priors import PRIORS
from langevin.evaluation import attacks, calibration, corruptions, ood, scores, selective
from tests.helpers import toy_data, toy_model, toy_posterior

POOL = {
    "None": None,
    "string": "nonsense",
    "negative": -1,
    "NaN": math.nan,
    "infinity": math.inf,
    "bool": True,
    "huge": 10**30,
    "float": 1.5,
    "list": [object()],
    "dict": {"a": object()},
    "object": object(),
    "optimizer": torch.optim.Adam,
    "module": nn.Linear(1, 1),
}
FREE = {  # (function or *, argument): what of the pool makes sense, or can't be told from what does
    ("*", "checkpoint_seconds"): {"infinity"},
    ("resume", "init"): set(POOL),  # looked at only if chains are added
    ("run.predict_many", "samples"): {"dict"},  # its keys
    ("last_layer", "output"): {"negative"},
    ("Posterior", "output"): {"negative"},  # looked at when the model is called
    ("Recorder.record", "stats"): {"negative", "NaN", "infinity", "bool", "huge", "float"},  # any number
}
OWN = {  # errors of what was given: a function or a module is called, and its error is shown as it is
    ("run.predict_many", "observe"),
    ("evaluate", "run"),
    ("distill", "student"),
    ("under_attack", "victim"),
    ("under_attack", "surrogate"),
}
WORDS = {  # how a sentence may call an argument otherwise
    "length": "a cycle takes",
    "test": "Test data",
    "x": "predict takes inputs",
    "df": "StudentT(",
    "scale": "StudentT(",
    "levels": "Ordinal(",
    "class_weights": "weights",
    "likelihood": "is a class; give an object",
    "what": "method of langevin",
    "victim": "An attack needs an ensemble",
    "surrogate": "An attack needs an ensemble",
    "name": "nonsense",  # a trace, a model, a data set: 'nonsense' is not one of …
    "sampler": "not a langevin.Sampler",
    "prior": "is a class; give an object",
    "patterns": "The prior for 'a'",
    "runs": "Give a run",
    "baselines": "Give a run",
    "path": "export writes",
    "ladder": "No learning rate held the temperature",
    "probs": "probabilities",
}
LIKELIHOOD = {  # what they need
    likelihoods.Gaussian: {"std": 0.5},
    likelihoods.Ordinal: {"levels": 3},
    likelihoods.StudentT: {"scale": 0.5},
    likelihoods.Weighted: {"likelihood": likelihoods.Categorical()},
}
LANGEVIN = str(Path(lv.__file__).parent)


@cache
def run():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"lr": 1e-3, "steps": 12, "burn_in": 2, "thin": 2, "chains": 2, "mode": "sequential"}
        return lv.sample(toy_posterior(), toy_data(), lv.SGLD, progress=False, **options)


@cache
def fit():
    options = {"optimizer": partial(torch.optim.SGD, lr=1e-2), "steps": 8, "progress": False}
    return lv.fit(toy_posterior(), toy_data(), lv.SWAG(cycle=2, rank=2), **options)


def functions():
    """Every public function, method and constructor, with arguments that it accepts."""
    data, probs = toy_data(), torch.full((6, 3), 1 / 3)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    training = {"posterior": toy_posterior(), "data": data, "progress": False}
    short = {"steps": 2, "batch_size": 8}
    yield "Posterior", lv.Posterior, {"model": toy_model(), "likelihood": likelihoods.Categorical(), "num_data": 60}
    yield "sample", lv.sample, {**training, **short, "sampler": lv.SGLD, "lr": 1e-3, "mode": "sequential", "probe": 0.0}
    yield (
        "fit",
        lv.fit,
        {**training, "approximation": lv.MeanField(), "optimizer": partial(torch.optim.SGD, lr=1e-3), **short},
    )
    yield "find_map", lv.find_map, {**training, "method": "sgd", **short}
    yield "find_lr", lv.find_lr, {**training, "sampler": lv.SGLD, "steps": 20, "tolerance": 0.9, "batch_size": 8}
    yield "resume", lv.resume, {**training, "run": run()}
    yield "load", lv.load, {"path": "nowhere", "model": toy_model()}
    yield "last_layer", lv.last_layer, {"model": toy_model()}
    yield "prior_predictive", lv.prior_predictive, {"posterior": toy_posterior(), "x": data[0], "samples": 2}
    yield "cite", lv.cite, {"what": lv.SGLD}
    yield "compare", lv.compare, {"runs": {"a": run()}, "test": data, "resamples": 5}
    yield "evaluate", lv.evaluate, {"run": run(), "test": data}
    yield "distill", lv.distill, {"run": run(), "student": toy_model(), "inputs": data[0], "steps": 2, "batch_size": 8}
    yield "cyclical", lv.cyclical, {"length": 3}
    yield "sawtooth", schedules.sawtooth, {"length": 3, "low": 1e-3}
    yield "Recorder", lv.Recorder, {"posterior": toy_posterior()}
    yield "Recorder.record", lv.Recorder(toy_posterior()).record, {"step": 1}
    for kind in samplers.SAMPLERS.values():
        params = list(toy_model().parameters())
        yield kind.__name__, kind, {"params": params, "lr": 1e-3, "num_data": 60}
    for registry in (preconditioners.PRECONDITIONERS, approximations.APPROXIMATIONS, PRIORS, LIKELIHOODS):
        for kind in registry.values():
            yield f"{registry.kind} {kind.__name__}", kind, LIKELIHOOD.get(kind, {})
    yield "priors.fan_in", priors.fan_in, {"model": toy_model()}
    yield "priors.lora", priors.lora, {"model": toy_model()}
    yield "priors.default", priors.default, {"model": toy_model()}
    yield "priors.resnetpp", priors.resnetpp, {}
    yield "priors.PerParameter", priors.PerParameter, {"patterns": {"*": priors.Flat()}}
    yield "temperature_of", samplers.temperature_of, {"lr": 0.1, "num_data": 60, "batch_size": 8}
    yield "batch_size_for", samplers.batch_size_for, {"temperature": 1.0, "lr": 0.1, "num_data": 60}
    for kind in (models.MLP, models.LogisticRegression):
        yield f"models.{kind.__name__}", kind, {"in_features": 4, "out_features": 3}
    for kind in (models.StridedCNN, models.LeNet5):
        yield f"models.{kind.__name__}", kind, {}
    yield "models.make", models.make, {"name": "logistic", "in_features": 3}
    yield "data.binary_logistic", lv.data.binary_logistic, {"size": 9}
    yield "data.load", lv.data.load, {"name": "binary-logistic"}
    features, poisonous = torch.rand(9, 2), torch.zeros(9)
    yield "MushroomBandit", bandits.MushroomBandit, {"features": features, "poisonous": poisonous}
    model, noise = nn.Linear(4, 1), likelihoods.Gaussian(1.0)
    playing = {"posterior": lv.Posterior(model, noise, num_data=9), "sampler": partial(lv.SGLD, lr=1e-3)}
    bandit = bandits.MushroomBandit(features, poisonous)
    yield "play", bandits.play, {"bandit": bandit, **playing, "rounds": 2, "batch_size": 1, "progress": False}
    x = data[0][:3]
    yield "run.predict", run().predict, {"x": x}
    yield "run.predict_many", run().predict_many, {"inputs": {"a": x}}
    yield "run.at_temperature", run().at_temperature, {"temperature": 1.0}
    yield "run.chain", run().chain, {"number": 0}
    yield "run.trace", run().trace, {"name": "loss"}
    yield "run.verdict", run().verdict, {"x": x}
    yield "run.convergence", run().convergence, {"subset": 3}
    yield "run.function_convergence", run().function_convergence, {"x": x}
    yield "run.stationarity", run().stationarity, {}
    yield "run.summary", run().summary, {}
    yield "run.to_arviz", run().to_arviz, {"subset": 2}
    yield "run.save", run().save, {"path": "/dev/null/nowhere"}
    yield "run.export", run().export, {"path": "nowhere.txt", "inputs": x}
    yield "fit.sample", fit().sample, {"count": 1}
    yield "fit.predict", fit().predict, {"x": x, "draws": 2}
    yield "fit.trace", fit().trace, {"name": "loss"}
    yield "fit.save", fit().save, {"path": "/dev/null/nowhere"}
    yield "FGSM", evaluation.FGSM, {"eps": 0.1}
    yield "PGD", evaluation.PGD, {"eps": 0.1}
    yield (
        "under_attack",
        attacks.under_attack,
        {"victim": run(), "attack": evaluation.FGSM(0.1), "x": x, "y": labels[:3]},
    )
    for name in ("reliability", "calibration_error", "class_reliability", "class_calibration_errors"):
        yield name, getattr(calibration, name), {"probs": probs, "labels": labels}
    for name in ("accuracy", "negative_log_likelihood", "brier", "class_scores"):
        yield name, getattr(scores, name), {"probs": probs, "labels": labels}
    yield "risk_coverage", selective.risk_coverage, {"probs": probs, "labels": labels}
    yield "confidence_histogram", ood.confidence_histogram, {"probs": probs}
    yield "corrupt", corruptions.corrupt, {"x": torch.rand(2, 1, 8, 8), "kind": "blur", "severity": 1}


def sense(kind):
    """What of the pool an argument of this annotation may take, whether or not it does."""
    origin, inside = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return set().union(*map(sense, inside))
    if origin is type(None):
        return {"None"}
    if origin is float:
        return {"float", "huge"}
    if origin is bool:
        return {"bool"}
    if origin in (str, Path):
        return {"string"}
    if origin is collections.abc.Callable:
        return {"optimizer", "module"}
    if isinstance(origin, type) and issubclass(origin, nn.Module) and not issubclass(origin, lv.Posterior):
        return {"module"}
    return set()


NOT_TRIED = {  # of internal use, or without a constraint of their own
    "all_temperatures",
    "concat",
    "count",  # of a sequence, as Python has it
    "index",
    "convergence_of",
    "from_classifier",
    "from_weights",
    "log_probs",
    "reestimate",
    "split_by_chain",
}


def test_every_public_function_is_tried():
    names = {name.split()[-1] for name, _, _ in functions()}
    public = {n for n in dir(lv) if callable(getattr(lv, n)) and not isinstance(getattr(lv, n), types.ModuleType)}
    abstract = {"Ensemble", "Fit", "Run", "Sampler", "DivergenceError", "RunError"}
    assert public - abstract - names == set()
    tried = {name.partition(".")[2] for name in names if name.startswith(("run.", "fit."))}
    for made in (run(), fit()):
        methods = {n for n in dir(type(made)) if not n.startswith("_") and inspect.isfunction(getattr(type(made), n))}
        with_arguments = {n for n in methods if inspect.signature(getattr(made, n)).parameters}
        assert with_arguments - tried - NOT_TRIED == set()


def test_nonsense_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = [said for name, function, given in functions() for said in tried(name, function, given)]
    assert not wrong, "\n".join(wrong)


def tried(name, function, given):
    """What each argument was not refused for, as it should have been."""
    target = function.__init__ if isinstance(function, type) else function
    target = inspect.unwrap(getattr(target, "__func__", target))
    hints = arguments._hints(target) if hasattr(target, "__module__") else {}
    for parameter in inspect.signature(function).parameters.values():
        kind = hints.get(parameter.name, inspect.Parameter.empty)
        if kind is inspect.Parameter.empty or (name, parameter.name) == ("run.export", "inputs"):  # takes seconds
            continue
        free = sense(kind) | FREE.get(("*", parameter.name), set()) | FREE.get((name, parameter.name), set())
        for what, value in POOL.items():
            if (value is None and parameter.default is None) or (
                what == "bool" and bool in (kind, *typing.get_args(kind))
            ):
                continue  # what it is anyway
            said = outcome(function, {**given, parameter.name: value}, parameter.name)
            own = (name, parameter.name) in OWN and what in ("module", "optimizer")
            if said is not None and not (said == "accepted" and what in free) and not own:
                yield f"{name}: {parameter.name}={what}: {said}"


def outcome(function, given, name):
    """None if an argument was refused as it should be, else what happened."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(**given)
    except (ValueError, TypeError, lv.DivergenceError) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        if not frame.filename.startswith(LANGEVIN):
            return f"{type(error).__name__} from {frame.filename}:{frame.lineno}: {error}"
        if (
            name not in str(error)
            and WORDS.get(name, name) not in str(error)
            and not isinstance(error, lv.DivergenceError | lv.RunError)
        ):
            return f"the message does not name it: {error}"
        return None
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} from {frame.filename}:{frame.lineno}: {error}"
    return "accepted"
