"""Plots: the drawn data are the given data; colours for colour-blind readers; bad input."""

import io
import itertools
import math

import numpy as np
import pytest
import torch

from langevin import plots
from langevin.ensembles.prediction import ValuePrediction
from langevin.evaluation.calibration import Reliability
from langevin.evaluation.selective import risk_coverage
from langevin.plots import style
from langevin.plots.chains import autocorrelation_of
from langevin.plots.posterior import _levels, ellipse
from langevin.report.theme import DARK

CURVE = Reliability(torch.tensor([0.3, 0.8]), torch.tensor([0.4, 0.7]), torch.tensor([5, 5]))


def line(axes, label):
    (found,) = [line for line in axes.lines if line.get_label() == label]
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


def png(axes):
    buffer = io.BytesIO()
    (axes if hasattr(axes, "savefig") else axes.figure).savefig(buffer, format="png")
    return buffer.getvalue()


def test_reliability_and_coverage_draw_the_curves():
    axes = plots.reliability({"a": CURVE, "b": CURVE})
    x, y = line(axes, "a")
    assert x == pytest.approx([0.3, 0.8])
    assert y == pytest.approx([0.4, 0.7])
    axes = plots.coverage({"a": ([0.5, 0.9], [0.4, 0.8])})
    assert line(axes, "a")[1] == pytest.approx([0.4, 0.8])
    assert png(axes).startswith(b"\x89PNG")


def test_five_series_are_told_apart_and_the_legend_hides_no_curve():
    styles = [tuple(map(str, style.series(index).values())) for index in range(16)]
    assert len(set(styles)) == 16
    confidence = torch.linspace(0.5, 1, 8)
    for shift in (0.2, -0.2):  # under- and overconfident
        curve = Reliability(confidence, (confidence + shift).clamp(0, 1), torch.full((8,), 5))
        names = ["MCLMC", "deep ensemble of five networks", "Laplace (K-FAC), linearized", "mean-field"]
        axes = plots.reliability(dict.fromkeys(names, curve))
        axes.figure.canvas.draw()
        box = axes.get_legend().get_window_extent()
        points = axes.transData.transform(np.stack([curve.confidence, curve.accuracy], 1))
        assert not any(box.contains(*point) for point in points)


def test_histograms_are_normalized_and_clipped_to_their_limits():
    axes = plots.histograms({"a": [0.1, 0.1, 0.9, 1.5], "b": torch.tensor([0.5])}, bins=2)
    outlines = [patch for patch in axes.patches if patch.get_label() == "a"]
    assert outlines[0].get_data().values == pytest.approx([0.5, 0.5])


def test_risk_coverage():
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2]])
    axes = plots.risk_coverage({"a": risk_coverage(probs, torch.tensor([0, 1, 0]))})
    assert line(axes, "a")[1] == pytest.approx([0, 0, 1 / 3])


def test_intervals_are_in_the_order_of_the_means_and_show_which_targets_are_inside():
    mean, one = torch.tensor([[3.0], [1.0], [2.0]]), torch.ones(3, 1)
    prediction = ValuePrediction(mean, one, torch.zeros(3, 1))
    axes = plots.intervals(prediction, torch.tensor([[3.5], [9.0], [2.0]]), probability=0.9)
    inside, outside = (line.get_ydata().tolist() for line in axes.get_lines())
    assert (inside, outside) == ([2.0, 3.5], [9.0])
    ends = [segment[:, 1].tolist() for segment in axes.collections[0].get_segments()]
    assert ends == [pytest.approx([m - 1.645, m + 1.645], abs=0.01) for m in (1, 2, 3)]
    assert axes._repr_png_()[1:4] == b"PNG"


def test_traces_and_temperature():
    values = {0: [3.0, 2.0, 1.0], 1: [2.5, 2.0, 1.5]}
    assert line(plots.traces(values), "chain 1")[1] == pytest.approx([2.5, 2.0, 1.5])
    axes = plots.temperature(values, target=1.0, measured=1.02, error=0.03)
    assert line(axes, "target 1")[1] == pytest.approx([1, 1])
    assert line(axes, "measured: 1.02 ± 0.03")[1] == pytest.approx([1.02, 1.02])
    assert "± " not in str(plots.temperature(values, target=1.0, measured=1.02).get_legend().get_texts()[1].get_text())


def test_the_autocorrelation_of_an_ar1_chain_is_its_powers():
    rng = np.random.default_rng(0)
    n, rho = 20_000, 0.8
    x = np.zeros(n)
    for t in range(1, n):
        x[t] = rho * x[t - 1] + rng.normal()
    got = autocorrelation_of(x.tolist(), 10)
    error = math.sqrt((1 + rho**2) / (1 - rho**2) / n)  # Bartlett's bound for large lags
    assert np.abs(got - rho ** np.arange(11)).max() < 4 * error
    assert autocorrelation_of([1.0, -1.0, 1.0, -1.0], 1) == pytest.approx([1, -0.75])
    assert np.isnan(autocorrelation_of([1.0, 1.0, 1.0], 2)).all()
    axes = plots.autocorrelation({0: x[:100].tolist(), 1: [1.0]}, lags=5)
    assert line(axes, "chain 0")[1] == pytest.approx(autocorrelation_of(x[:100].tolist(), 5))


def test_the_temperature_sweep():
    axes = plots.temperature_sweep([0.1, 1.0], {"a": [0.5, 0.4]}, errors={"a": [0.1, 0.1]})
    assert axes.get_xscale() == "log"
    (bars,) = axes.containers
    assert np.asarray(bars.lines[0].get_ydata()) == pytest.approx([0.5, 0.4])


def test_an_ellipse_encloses_its_share_of_the_gaussian():
    mean, covariance = np.array([1.0, -2.0]), np.array([[2.0, 0.8], [0.8, 0.5]])
    draws = np.random.default_rng(0).multivariate_normal(mean, covariance, 20_000)
    inverse = np.linalg.inv(covariance)
    for mass in (0.5, 0.9):
        curve = ellipse(mean, covariance, mass) - mean
        radius = np.einsum("ni,ij,nj->n", curve, inverse, curve)
        assert radius == pytest.approx(np.full(len(radius), -2 * math.log(1 - mass)))
        inside = np.einsum("ni,ij,nj->n", draws - mean, inverse, draws - mean) < radius[0]
        assert abs(inside.mean() - mass) < 4 * math.sqrt(mass * (1 - mass) / 20_000)


def test_contours_enclose_their_share_of_the_mass():
    x = np.linspace(-5, 5, 201)
    log_density = -0.5 * (x[None] ** 2 + x[:, None] ** 2)
    density = np.exp(log_density)
    for level, share in zip(_levels(log_density), (0.99, 0.9, 0.5), strict=True):
        assert density[log_density >= level].sum() / density.sum() == pytest.approx(share, abs=0.01)
    draws = np.random.default_rng(0).normal(size=(50, 2))
    axes = plots.posterior_2d(draws, grid=(x, x, log_density), laplace=([0, 0], np.eye(2)), names=("a", "b"))
    assert line(axes, "samples")[0] == pytest.approx(draws[:, 0])
    assert axes.get_xlabel() == "a"
    png(axes)


def test_images_are_ranked_by_confidence():
    images = torch.arange(5).float().reshape(5, 1, 1, 1).expand(5, 1, 2, 2)
    figure = plots.ranked_images(images, [0.2, 0.9, 0.5, 1.0, 0.1], wrong=[True] * 5, count=3)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in shown] == ["1.00", "0.50", "0.10"]
    assert [float(axes.images[0].get_array()[0, 0]) for axes in shown] == pytest.approx([0.75, 0.5, 1.0])
    colour = plots.ranked_images(torch.rand(2, 3, 4, 4), [0.1, 0.2], ["one", "two"])
    assert colour.axes[0].get_xlabel() == "two"
    assert png(colour).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.reliability({}), "no curve"),
        (lambda: plots.coverage({}), "no curve"),
        (lambda: plots.histograms({}), "no histogram"),
        (lambda: plots.risk_coverage({}), "no curve"),
        (lambda: plots.traces({0: []}), "no trace"),
        (lambda: plots.autocorrelation({0: [1.0, 2.0]}), "at least 3 samples; given 2"),
        (lambda: plots.temperature({}, target=1.0), "no temperature"),
        (lambda: plots.temperature_sweep([], {}), "no temperature"),
        (lambda: plots.temperature_sweep([1.0], {"a": [1.0, 2.0]}), "'a' has 2 losses"),
        (lambda: plots.posterior_2d(np.zeros((3, 3))), r"\(n, 2\); given \(3, 3\)"),
        (lambda: ellipse([0], np.eye(2), 0.5), r"mean \(2,\)"),
        (lambda: ellipse([0, 0], np.eye(2), 1.0), "between 0 and 1"),
        (lambda: plots.ranked_images(torch.zeros(2, 2, 4, 4), [1, 2]), "1 or 3, height, width"),
        (lambda: plots.ranked_images(torch.zeros(2, 4, 4), [1]), "2 images and 1 confidences"),
        (lambda: plots.ranked_images(torch.zeros(0, 4, 4), []), "at least one"),
    ],
)
def test_bad_input(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_names_of_the_user_are_not_parsed_as_math():
    assert png(plots.reliability({"$\\frac{1": CURVE, "<b>": CURVE})).startswith(b"\x89PNG")


# Machado, Oliveira & Fernandes (2009), severity 1, on linear RGB
BLINDNESS = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(colour, matrix):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.asarray(matrix) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    f = np.cbrt(to_xyz @ linear / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize("colours", [style.SERIES, [DARK[f"series-{i}"] for i in range(4)]])
def test_colour_blind_readers_can_distinguish_colours(kind, colours):
    seen = [lab(colour, BLINDNESS[kind]) for colour in colours]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 12
