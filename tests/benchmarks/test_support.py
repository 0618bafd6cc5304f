"""Each network takes steps under each sampler that applies to it."""

import pytest

import langevin as lv
from benchmarks.support import NETWORKS, find_support, try_sampler, write_support
from langevin.samplers import SAMPLERS

WIDE = ("cnn", "vgg11")  # their dense or deep layers make K-FAC's factors large
SMALL = [network for network in NETWORKS if network.name not in WIDE]
FULL_FISHER = ("nld", "sngd")


@pytest.mark.parametrize("network", SMALL, ids=lambda network: network.label)
def test_each_network_under_each_applicable_sampler(network):
    for name, sampler in SAMPLERS.items():
        if name in FULL_FISHER:
            continue
        support = try_sampler(network, name)
        if "BatchNorm" in network.label and sampler.injects_noise:
            assert support.answer == "no"
            assert "Use GroupNorm" in support.why
        elif not sampler.stackable:
            assert support.answer in ("yes", "partly"), support.why
        else:
            assert support.answer == "yes", support.why


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("network", [network for network in NETWORKS if network.name in WIDE], ids=lambda n: n.label)
def test_wide_networks(network, name):
    assert (try_sampler(network, name).answer == "yes") == (name not in FULL_FISHER)


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
    assert find_support(network, "nld").answer == "frozen"


def test_a_sampler_that_is_registered_is_in_the_table(tmp_path, monkeypatch):
    class New(lv.SGLD):
        """Registered for this test."""

    monkeypatch.setitem(SAMPLERS, "new", New)
    page = tmp_path / "networks.md"
    write_support(page, say=lambda line: None, networks=[network for network in NETWORKS if network.name == "logistic"])
    head, _, row = page.read_text().splitlines()[4:7]
    columns = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert columns["New |"] == "yes |"
    assert columns["NLD"] == "frozen"
