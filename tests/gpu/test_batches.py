"""Batches go to a GPU through pinned memory, without waiting."""

import torch

from langevin.core import devices


class Host:
    """What a batch is asked for on its way from the host."""

    device, is_cpu = torch.device("cpu"), True

    def __init__(self):
        self.asked = []

    def pin_memory(self):
        self.asked.append("pinned")
        return self

    def to(self, device, non_blocking=False):
        self.asked.append((str(device), non_blocking))
        return self


def test_a_batch_is_pinned_and_copied_while_the_host_goes_on():
    batch = Host(), Host()
    devices.on_device(batch, torch.device("cuda:0"))
    assert [each.asked for each in batch] == 2 * [["pinned", ("cuda:0", True)]]
    elsewhere = Host()
    devices.on_device(elsewhere, torch.device("mps"))
    assert elsewhere.asked == [("mps", True)]
