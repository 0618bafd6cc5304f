"""The networks: parameter counts and shapes as published, vmap, signal at initialization, error messages."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import langevin.models as models
from langevin.models import resnet


@pytest.fixture(autouse=True)
def _quiet_threads():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


IMAGENET = {"num_classes": 1000, "image_size": 224, "widths": (4096, 4096)}
COUNTS = [
    # 64 weights: Smith et al. (2018), section 6.1, n = 64.
    ("logistic", {"in_features": 64, "bias": False}, 64),
    # 10·40 + 40 + 40·10 + 10: Smith et al. (2018), section 6.3, 10 features, 40 hidden units.
    ("mlp", {"in_features": 10, "out_features": 10, "widths": (40,)}, 850),
    ("mlp", {"in_features": 10, "out_features": 10, "widths": (40,), "bias": False}, 800),
    # TensorFlow's tutorial "Deep MNIST for experts": 832 + 51,264 + 3,212,288 + 10,250.
    ("cnn", {}, 3_274_634),
    # Smith et al. (2018), section 6.4: 1,890 + 1,600.
    ("cnn-strided", {}, 3_490),
    # LeCun et al. (1998) with full connections in C3: 156 + 2,416 + 48,120 + 10,164 + 850; see the test of its layers.
    ("lenet", {}, 61_706),
    # torchvision's documentation of vgg11 and vgg16 (num_params); Simonyan & Zisserman, table 2: 133 and 138 M.
    ("vgg11", IMAGENET, 132_863_336),
    ("vgg16", IMAGENET, 138_357_544),
    # Keras' documentation of VGG16 without its top, 14,714,688, and 512·10 + 10 for the head.
    ("vgg16", {}, 14_714_688 + 5_130),
    # He et al. (2016), table 6, which gives millions: 0.27, 0.46, 0.66, 0.85, 1.7.
    ("resnet", {"depth": 20, "shortcut": "identity"}, 269_722),
    ("resnet", {"depth": 32, "shortcut": "identity"}, 464_154),
    ("resnet", {"depth": 44, "shortcut": "identity"}, 658_586),
    ("resnet", {"depth": 56, "shortcut": "identity"}, 853_018),
    ("resnet", {"depth": 110, "shortcut": "identity"}, 1_727_962),
    # chenyaofo/pytorch-cifar-models, cifar10_resnet20 (projection shortcuts): 0.27 M.
    ("resnet", {"depth": 20}, 272_474),
    # Izmailov et al. (2021), ResNet-20-FRN: the above and 784 each of convolution biases and thresholds τ.
    ("resnet", {"depth": 20, "norm": "frn"}, 274_042),
    # torchvision's documentation of resnet50 (num_params).
    ("resnet50", {}, 25_557_032),
    # Scale and bias replace BatchNorm's γ and β; the 1,000 scales of the head are additional.
    ("resnet++50", {}, 25_557_032 + 1_000),
    ("resnet++", {"depth": 20, "width": 16}, 272_474 + 10),
]


@pytest.mark.parametrize(("name", "options", "expected"), COUNTS)
def test_parameter_counts_are_the_published_ones(name, options, expected):
    with torch.device("meta"):
        assert count(models.make(name, **options)) == expected


def test_lenet_layers_have_the_counts_of_1998():
    lenet = models.LeNet5()
    # LeCun et al. (1998), section II.B: C1 156, C5 48,120, F6 10,164 trainable parameters.
    assert [count(m) for m in (lenet.conv1, lenet.dense1, lenet.dense2)] == [156, 48_120, 10_164]


def test_resnetpp_of_the_paper_has_doubled_width_and_depth_56():
    paper = models.make("resnet++")
    assert paper.stem.direction.shape == (32, 3, 3, 3)
    # 56 layers: stem, 54 convolutions in blocks, head; besides them two shortcut projections.
    convolutions = [m for m in paper.modules() if isinstance(m, resnet.WeightNormConv2d)]
    assert len(convolutions) == 1 + 54 + 2


SMALL = [
    ("logistic", {"in_features": 12}, (12,), ()),
    ("logistic", {"in_features": 12, "out_features": 3}, (12,), (3,)),
    ("mlp", {"in_features": 12, "out_features": 5, "widths": (7, 6)}, (3, 2, 2), (5,)),
    ("mlp", {"in_features": 4, "out_features": 1, "widths": (), "activation": "tanh", "bias": False}, (4,), (1,)),
    ("cnn", {"image_size": 8}, (1, 8, 8), (10,)),
    ("cnn-strided", {"image_size": 8}, (1, 8, 8), (10,)),
    ("cnn-strided", {}, (1, 28, 28), (10,)),
    ("lenet", {}, (1, 28, 28), (10,)),
    ("lenet", {"image_size": 32, "in_channels": 3, "activation": "tanh", "pool": "average"}, (3, 32, 32), (10,)),
    ("vgg11", {"in_channels": 1}, (1, 32, 32), (10,)),
    ("resnet", {"depth": 8, "width": 4, "norm": "frn"}, (3, 8, 8), (10,)),
    ("resnet", {"depth": 8, "width": 4, "norm": "frn", "shortcut": "identity"}, (3, 9, 9), (10,)),
    ("resnet50", {"width": 2, "norm": "frn", "num_classes": 7}, (3, 32, 32), (7,)),
    ("resnet++", {"depth": 8, "width": 4}, (3, 8, 8), (10,)),
    ("resnet++", {"depth": 14, "width": 4, "bias": False}, (3, 9, 9), (10,)),
    ("resnet++50", {"width": 2, "num_classes": 7}, (3, 32, 32), (7,)),
]


@pytest.mark.parametrize(("name", "options", "shape", "out"), SMALL)
def test_vmap_over_chains_agrees_with_each_chain(name, options, shape, out):
    chains = [models.make(name, **options).double() for _ in range(2)]
    x = torch.randn(3, *shape, dtype=torch.double)
    alone = torch.stack([chain(x) for chain in chains])
    assert alone.shape == (2, 3, *out)
    assert alone.isfinite().all()

    params, buffers = stack_module_state(chains)
    together = vmap(lambda p, b: functional_call(chains[0], (p, b), (x,)))(params, buffers)
    torch.testing.assert_close(together, alone)

    grads = torch.func.grad(
        lambda p: vmap(lambda q: functional_call(chains[0], (q, {}), (x,)))(p).square().sum(), argnums=0
    )(params)
    expected = torch.autograd.grad(alone.square().sum(), [p for chain in chains for p in chain.parameters()])
    for i, (key, grad) in enumerate(grads.items()):
        reference = torch.stack([expected[i], expected[i + len(grads)]])
        torch.testing.assert_close(grad, reference, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", ["resnet", "resnet50"])
def test_batchnorm_works_under_vmap_in_evaluation_and_is_refused_in_training(name):
    chains = [models.make(name, width=2, **({"depth": 8} if name == "resnet" else {})) for _ in range(2)]
    x = torch.randn(3, 3, 32, 32)
    params, _ = stack_module_state(chains)

    def outputs():
        return vmap(lambda p: functional_call(chains[0], p, (x,)))(params)

    with pytest.raises(RuntimeError, match=r"running_mean|in-?place|vmap"):
        outputs()
    chains[0].eval()
    assert outputs().shape[:2] == (2, 3)


@pytest.mark.parametrize(("name", "options", "shape", "out"), SMALL)
def test_every_parameter_gets_a_gradient_and_examples_are_independent(name, options, shape, out):
    model = models.make(name, **options).double()
    x = torch.randn(4, *shape, dtype=torch.double)
    y = model(x)
    for (key, _), grad in zip(
        model.named_parameters(), torch.autograd.grad(y.square().sum(), list(model.parameters())), strict=True
    ):
        assert grad.abs().max() > 0, key
    torch.testing.assert_close(model(x[1:2]), y[1:2])


@pytest.mark.parametrize(("name", "options", "shape", "out"), SMALL)
def test_models_can_be_copied_and_pickled(name, options, shape, out):
    model = models.make(name, **options)
    x = torch.randn(2, *shape)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))


def test_no_activation_is_in_place():
    for name, options, shape, _ in SMALL:
        model = models.make(name, **options)
        outputs = []
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d | resnet.WeightNormConv2d):
                module.register_forward_hook(lambda m, i, o, outputs=outputs: outputs.append((o, o.detach().clone())))
        model(torch.randn(2, *shape))
        assert outputs or name in ("resnet++", "resnet++50")
        assert all(torch.equal(now, then) for now, then in outputs), name


def test_mlp_follows_its_equation_with_any_activation():
    x = torch.randn(5, 2, 3)
    for activation, function in [("tanh", torch.tanh), ("silu", nn.functional.silu), (torch.sin, torch.sin)]:
        mlp = models.MLP(6, 2, widths=(4, 3), activation=activation)
        first, second, third = mlp.layers
        torch.testing.assert_close(mlp(x), third(function(second(function(first(x.view(5, 6)))))))


def test_lenet_options_change_the_output():
    x = torch.randn(2, 1, 28, 28)
    outputs = []
    for options in ({}, {"pool": "average"}, {"activation": "tanh"}):
        torch.manual_seed(1)
        outputs.append(models.LeNet5(**options)(x))
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_weight_normalization_is_scale_times_unit_direction():
    layer = resnet.WeightNormConv2d(3, 5, 3)
    with torch.no_grad():
        layer.scale.copy_(torch.tensor([1.0, -2.0, 3.0, 0.0, 0.5]))
        layer.direction.mul_(torch.rand(5, 1, 1, 1) + 1)
    weight = resnet.weight_normalized(layer.scale, layer.direction)
    torch.testing.assert_close(weight.flatten(1).norm(dim=1), layer.scale.abs())
    torch.testing.assert_close(
        weight[1], -2 * layer.direction[1] / layer.direction[1].norm()
    )  # the same direction, with the sign of the scale
    x = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(layer(x), nn.functional.conv2d(x, weight, layer.bias, padding=1))
    before = layer(x)
    with torch.no_grad():
        layer.direction.mul_(7)
    torch.testing.assert_close(layer(x), before)


def test_resnetpp_parameters_are_named_for_their_priors_and_initialized_as_in_the_paper():
    for model in (models.make("resnet++", depth=14, width=4, branch_scale=0.05), models.ResNetPP50(width=2)):
        small = 0.1 if isinstance(model, models.ResNetPP50) else 0.05
        kinds = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
        assert kinds == {"scale", "direction", "bias"}
        assert not list(model.buffers())
        ends = {id(block.units[-1].scale) for block in model.modules() if isinstance(block, resnet.ResidualBlock)}
        assert len(ends) == (6 if small == 0.05 else 16)
        for name, parameter in model.named_parameters():
            if name.endswith("scale"):
                assert (parameter == (small if id(parameter) in ends else 1.0)).all(), name
            if name.endswith("direction"):
                torch.testing.assert_close(parameter.flatten(1).norm(dim=1), torch.ones(len(parameter)))
    last_only = {n for n, _ in models.CifarResNetPP(8, 4, bias=False).named_parameters() if n.endswith("bias")}
    assert last_only == {"head.bias"}


def test_resnetpp_block_is_that_of_figure_1():
    block = models.ResNetPP50(width=2).stages[0][1]
    x = torch.randn(2, 8, 5, 5)
    one, two, three = block.units
    assert [u.direction.shape[-1] for u in block.units] == [1, 3, 1]
    selu = nn.functional.selu
    torch.testing.assert_close(block(x), selu(three(selu(two(selu(one(x))))) + x))
    basic = models.CifarResNetPP(14, 4).stages[0][1]
    one, two = basic.units
    x = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(basic(x), selu(two(selu(one(x))) + x))


@pytest.mark.parametrize(("name", "options"), [("resnet++", {"width": 8}), ("vgg16", {}), ("resnet", {"norm": "frn"})])
def test_signal_neither_vanishes_nor_explodes_at_initialization(name, options):
    model = models.make(name, **options)
    logits = model(torch.randn(4, 3, 32, 32))
    assert 0.05 < logits.std() < 5
    assert (logits[0] - logits[1]).abs().max() > 0.01


def test_filter_response_norm_follows_its_equation():
    norm = resnet.FilterResponseNorm(3)
    with torch.no_grad():
        norm.gamma.copy_(torch.tensor([1.0, 2.0, -1.0]))
        norm.beta.copy_(torch.tensor([0.0, 1.0, 0.5]))
        norm.tau.copy_(torch.tensor([-9.0, 0.0, 0.3]))
    x = torch.randn(2, 3, 4, 5)
    for n in range(2):
        for c in range(3):
            nu2 = (x[n, c] ** 2).sum() / 20
            expected = (norm.gamma[c] * x[n, c] / (nu2 + 1e-6).sqrt() + norm.beta[c]).clamp(min=norm.tau[c].item())
            torch.testing.assert_close(norm(x)[n, c], expected)


def test_identity_shortcut_subsamples_positions_and_adds_zero_channels():
    x = torch.arange(2 * 3 * 4 * 4.0).view(2, 3, 4, 4)
    y = resnet.IdentityShortcut(2, 2)(x)
    assert y.shape == (2, 5, 2, 2)
    assert torch.equal(y[:, :3], x[:, :, ::2, ::2])
    assert (y[:, 3:] == 0).all()


BAD = [
    ("no-such-model", {}, "mlp"),
    ("mlp", {"in_features": 3}, "out_features"),
    ("mlp", {"in_features": 3, "out_features": 2, "width": 4}, "widths"),
    ("mlp", {"in_features": 3, "out_features": 2, "widths": 4}, r"widths=\(4,\)"),
    ("mlp", {"in_features": 0, "out_features": 2}, r"MLP\("),
    ("mlp", {"in_features": 3, "out_features": 2, "activation": "rleu"}, 'activation="relu"'),
    ("logistic", {"in_features": 0}, r"LogisticRegression\("),
    ("cnn", {"image_size": 2}, r"CNN\("),
    ("cnn", {"kernel_size": 4}, r"CNN\("),
    ("cnn", {"channels": (0, 8)}, r"channels=\(32, 64\)"),
    ("cnn", {"width": 0}, "width="),
    ("cnn-strided", {"channels": 0}, "channels="),
    ("lenet", {"image_size": 8}, "28"),
    ("lenet", {"pool": "mean"}, 'pool="average"'),
    ("vgg", {"depth": 12}, "depth=16"),
    ("vgg", {"image_size": 28}, "image_size=32"),
    ("resnet", {"depth": 18}, "depth=20"),
    ("resnet", {"norm": "layer"}, 'norm="frn"'),
    ("resnet", {"shortcut": "none"}, 'shortcut="identity"'),
    ("resnet", {"num_classes": 0}, "num_classes="),
    ("resnet50", {"norm": "none"}, 'norm="batch"'),
    ("resnet++", {"depth": 55}, "depth=56"),
    ("resnet++", {"branch_scale": 0.0}, "branch_scale=0.1"),
]


@pytest.mark.parametrize(("name", "options", "advice"), BAD)
def test_bad_options_are_refused_with_the_corrected_call(name, options, advice):
    with pytest.raises(ValueError, match=advice):
        models.make(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("mlp", {"in_features": 3, "out_features": 2}, (5, 4)),
        ("logistic", {"in_features": 3}, (5, 4)),
        ("cnn", {}, (5, 28, 28)),
        ("cnn-strided", {}, (5, 1, 32, 32)),
        ("lenet", {}, (5, 3, 28, 28)),
        ("vgg11", {}, (5, 1, 32, 32)),
        ("resnet", {"depth": 8}, (5, 1, 32, 32)),
        ("resnet++", {"depth": 8}, (3, 32, 32)),
    ],
)
def test_inputs_of_the_wrong_shape_are_refused(name, options, shape):
    with pytest.raises(ValueError, match="expects"):
        models.make(name, **options)(torch.zeros(shape))


def test_every_model_documents_its_paper_and_shapes():
    for name in models.names():
        model = models._MODELS[name]
        text = inspect.getdoc(getattr(model, "func", model))
        assert "Shapes:" in text, name
        assert name in ("logistic", "mlp") or any(f"({year})" in text for year in (1998, 2015, 2016, 2018, 2019, 2021))
