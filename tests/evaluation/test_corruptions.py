import math

import pytest
import torch

from langevin.evaluation.corruptions import KINDS, corrupt, under_shift
from langevin.evaluation.scores import class_scores


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 1, 8, 8), (3, 2, 12, 9), (3, 8, 8)])
def test_corruptions_grow_with_severity_and_stay_in_range(kind, shape):
    x = _smooth(shape)
    changes = []
    for severity in range(1, 6):
        corrupted = corrupt(x, kind, severity)
        assert corrupted.shape == x.shape
        assert float(corrupted.min()) >= float(x.min()) - 1e-6
        assert float(corrupted.max()) <= float(x.max()) + 1e-6
        assert torch.equal(corrupted, corrupt(x, kind, severity))
        changes.append(float((corrupted - x).square().mean()))
    assert changes == sorted(changes)
    assert changes[0] > 0


def test_noise_has_the_stated_strength():
    x = torch.full((4, 1, 50, 50), 5.0)
    x[0, 0, 0, 0], x[0, 0, 0, 1] = 0.0, 10.0  # the range
    added = (corrupt(x, "gaussian noise", 2, seed=3) - x)[1:]
    assert float(added.std()) == pytest.approx(1.0, abs=4 / math.sqrt(2 * added.numel()))
    assert not torch.equal(added, (corrupt(x, "gaussian noise", 2, seed=4) - x)[1:])


def test_blur_is_a_convolution_with_a_gaussian():
    """A point becomes a Gaussian of variance σ² (plus the grid's own) and keeps its mass."""
    x = torch.zeros(1, 1, 57, 57, dtype=torch.float64)
    x[0, 0, 28, 28] = 1.0
    found = corrupt(x, "blur", 3)[0, 0]
    place = torch.arange(57, dtype=torch.float64) - 28
    assert float(found.sum()) == pytest.approx(1.0)
    assert float((found.sum(0) * place**2).sum()) == pytest.approx((0.3 + 3 * 57 / 56) ** 2, rel=0.03)  # cut off at 3σ
    assert torch.allclose(found, found.T)
    flat = torch.full((1, 1, 9, 9), 2.0)
    torch.testing.assert_close(corrupt(flat, "blur", 5), flat)


def test_contrast_keeps_the_mean_of_each_image():
    x = torch.rand(3, 2, 5, 5)
    found = corrupt(x, "contrast", 2)
    torch.testing.assert_close(found.mean((1, 2, 3)), x.mean((1, 2, 3)))
    torch.testing.assert_close(found.std((1, 2, 3)), 0.5 * x.std((1, 2, 3)))


@pytest.mark.parametrize("shape", [(41, 41), (41, 61)])
def test_rotation_rotates_a_point_by_the_angle(shape):
    """Counter-clockwise by 30 degrees, in pixels even if the image is not square."""
    height, width = shape
    x = torch.full((1, 1, height, width), 1.0, dtype=torch.float64)  # the padding is the lowest value, 1
    row, column = height // 2, width // 2 + 12  # right of the centre
    x[0, 0, row - 1 : row + 2, column - 1 : column + 2] = 3.0
    found = corrupt(x, "rotation", 3)[0, 0] - 1
    rows, columns = torch.meshgrid(torch.arange(height) - height // 2, torch.arange(width) - width // 2, indexing="ij")
    centre = [float((found * place).sum() / found.sum()) for place in (columns, rows)]
    angle = math.radians(30)
    assert centre == pytest.approx([12 * math.cos(angle), -12 * math.sin(angle)], abs=0.1)  # rows grow downwards


def test_scores_under_shift_are_those_of_the_corrupted_inputs():
    x, y = _smooth((20, 1, 8, 8)).flatten(1), torch.randint(3, (20,))
    model = torch.nn.Linear(64, 3)
    rows = under_shift(model, x, y, kinds=["contrast"], severities=[1, 5], image_shape=(1, 8, 8))
    assert [(row.kind, row.severity) for row in rows] == [("clean", 0), ("contrast", 1), ("contrast", 5)]
    changed = corrupt(x.reshape(-1, 1, 8, 8), "contrast", 5).flatten(1)
    expected = class_scores(model(changed).softmax(1), y)
    assert rows[2].accuracy == expected["accuracy"]
    assert rows[2].nll == pytest.approx(expected["nll"])
    assert rows[2].calibration_error == pytest.approx(expected["calibration error"])


def test_bad_input_is_refused():
    x = torch.rand(2, 1, 8, 8)
    with pytest.raises(ValueError, match="kind='fog'"):
        corrupt(x, "fog", 1)
    with pytest.raises(ValueError, match="severity=6"):
        corrupt(x, "blur", 6)
    with pytest.raises(ValueError, match=r"image_shape=\(1, 8, 8\)"):
        corrupt(x.flatten(1), "blur", 1)


def _smooth(shape):
    """Images of broad blobs, whose error grows with the strength of a corruption."""
    generator = torch.Generator().manual_seed(0)
    height, width = shape[-2:]
    rows, columns = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)[None]
    tilt = torch.randn(*shape[:-2], 1, 1, generator=generator)
    return torch.exp(-2 * (rows - 0.3 * tilt) ** 2 - 6 * (columns - 0.2) ** 2)
