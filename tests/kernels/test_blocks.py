import pytest
import torch

from langevin.kernels.blocks import SIZE, Blocks


def tensors(seed, *, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3,), (4, 5), (SIZE + 7,), (), (2, 3, 4, 5), (40, SIZE // 16)]
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    made[3] = made[3].double()  # another dtype: not concatenated with the others
    made[5] = made[5].t()  # not contiguous
    return made


def test_an_update_in_blocks_equals_the_update():
    changed, momenta, read = tensors(0), tensors(1), tensors(2)
    expected = [t + 2 * u * g for t, u, g in zip(changed, momenta, read, strict=True)]
    halves = [u / 2 for u in momenta]
    blocks = Blocks()
    largest = 0
    for theta, u, g in blocks.of([changed, momenta], [read]):
        assert theta.shape == u.shape == g.shape
        assert theta.dtype == u.dtype == g.dtype
        theta.addcmul_(u, g, value=2)
        u.div_(2)
        largest = max(largest, theta.numel() if theta.is_contiguous() else 0)
    assert largest == SIZE
    for ours, exact in zip(changed + momenta, expected + halves, strict=True):
        tight = 1e-6 if ours.dtype == torch.float32 else 1e-12
        torch.testing.assert_close(ours, exact, rtol=tight, atol=tight)


def test_buffers_can_be_reused_in_the_next_step():
    changed = tensors(0)
    blocks = Blocks()
    for step in range(3):
        before = [t.clone() for t in changed]
        for (theta,) in blocks.of([changed], []):
            theta.add_(step)
        for t, b in zip(changed, before, strict=True):
            torch.testing.assert_close(t, b + step)


def scaled_sum(scale, theta, g):
    theta.add_(g, alpha=scale)


def scaled_sums(scale, theta, g):
    torch._foreach_add_(theta, g, alpha=scale)


@pytest.mark.parametrize(("each", "update"), [(Blocks.each, scaled_sum), (Blocks.each_list, scaled_sums)])
def test_each_block_is_updated_once(each, update):
    changed, read = tensors(0), tensors(2)
    expected = [t + 2 * g for t, g in zip(changed, read, strict=True)]
    each(Blocks(), update, [changed], [read], 2.0)
    for ours, exact in zip(changed, expected, strict=True):
        torch.testing.assert_close(ours, exact)
