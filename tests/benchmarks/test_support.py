"""Each network takes steps under each sampler that applies to it."""

import pytest

from benchmarks.support import NETWORKS, try_sampler
from langevin.samplers import METHODS

WIDE = ("cnn", "vgg11")  # their dense or deep layers make K-FAC's factors large
SMALL = [network for network in NETWORKS if network.name not in WIDE]
QUICK = ["sgd", "sgld", "sghmc", "sgnht", "atmc", "psgld", "ksgld", "bnpsgld"]


@pytest.mark.parametrize("network", SMALL, ids=lambda network: network.label)
def test_each_network_under_each_applicable_sampler(network):
    for method in QUICK:
        verdict = try_sampler(network, method)
        if "BatchNorm" in network.label and METHODS[method].sampler.injects_noise:
            assert verdict.answer == "no"
            assert "Use GroupNorm" in verdict.why
        elif method in ("ksgld", "bnpsgld"):
            assert verdict.answer in ("yes", "partly"), verdict.why
        else:
            assert verdict.answer == "yes", verdict.why


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", [network for network in NETWORKS if network.name in WIDE], ids=lambda n: n.label)
def test_wide_networks(network, method):
    assert (try_sampler(network, method).answer == "yes") == (method not in ("nld", "sngd"))


@pytest.mark.parametrize(
    "network", [network for network in NETWORKS if network.name in ("cnn", "vgg11")], ids=lambda n: n.label
)
def test_wide_networks_under_element_wise_samplers(network):
    assert try_sampler(network, "sgld").answer == "yes"


def test_full_fisher_methods_on_a_small_network():
    network = next(network for network in NETWORKS if network.name == "mlp")
    assert try_sampler(network, "sngd").answer == "yes"
    assert try_sampler(network, "nld", target="as-printed").answer == "yes"
    refused = try_sampler(network, "nld")
    assert refused.answer == "no"
    assert "850" in refused.why
