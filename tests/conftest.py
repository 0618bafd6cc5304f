import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    """Two workers share two cores; and no test depends on another's draws."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
