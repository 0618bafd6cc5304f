import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    """Two workers share two cores, and no test depends on the random state of another."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _name_of_the_fault(request):
    """`@pytest.mark.fault("…")` names the fault that a test injects; `make faults` counts them."""
    mark = request.node.get_closest_marker("fault")
    if mark is not None:
        request.node.user_properties.append(("fault", mark.args[0]))
        request.node.user_properties += [("faults", number) for number in mark.args[1:]]
