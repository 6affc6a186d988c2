"""Every loss against loops, and autograd against the paper's residual, Eq. (deltaC)."""

import math

import pytest
import torch

from transhash.hashers.losses import (
    alignment_loss,
    dcmh_loss,
    inner_product_loss,
    pair_weights,
    quantization_loss,
    relation_loss,
)

torch.manual_seed(0)
N, M, T, B = 5, 4, 3, 8
Z_X = torch.tanh(torch.randn(N, B, dtype=torch.float64))
Z_Y = torch.tanh(torch.randn(M, B, dtype=torch.float64))
Z_T = torch.tanh(torch.randn(T, B, dtype=torch.float64))
S = (torch.rand(N, M) > 0.6).double()


def dot(a: torch.Tensor, b: torch.Tensor) -> float:
    return sum(float(p) * float(q) for p, q in zip(a, b, strict=True))


def test_relation_loss_is_the_mean_of_equation_5_over_all_pairs() -> None:
    total = 0.0
    for i in range(N):
        for j in range(M):
            u = dot(Z_X[i], Z_Y[j])
            total += math.log(1 + math.exp(u)) - float(S[i, j]) * u
    assert float(relation_loss(Z_X, Z_Y, S)) == pytest.approx(total / (N * M))


def test_relation_loss_does_not_overflow() -> None:
    z = torch.ones(1, 2048)
    assert float(relation_loss(z, z, torch.ones(1, 1))) == pytest.approx(0.0)
    assert float(relation_loss(z, z, torch.zeros(1, 1))) == pytest.approx(2048.0)


def test_inner_product_loss_is_the_squared_error_to_the_signed_relation() -> None:
    total = sum(
        (dot(Z_X[i], Z_Y[j]) / B - (2 * float(S[i, j]) - 1)) ** 2
        for i in range(N)
        for j in range(M)
    )
    assert float(inner_product_loss(Z_X, Z_Y, S)) == pytest.approx(total / (N * M))


def test_quantization_loss_is_equation_6_and_zero_at_binary_codes() -> None:
    total = sum(-math.log(abs(float(v))) for row in Z_X for v in row) / N
    assert float(quantization_loss(Z_X)) == pytest.approx(total)
    assert float(quantization_loss(torch.sign(Z_X))) == 0.0


def test_quantization_loss_has_no_gradient_below_its_floor() -> None:
    z = torch.tensor([[1e-5, 0.5]], requires_grad=True)
    quantization_loss(z).backward()
    assert z.grad is not None
    assert z.grad.tolist() == [[0.0, -2.0]]


def test_alignment_loss_is_the_biased_mmd_of_equation_7() -> None:
    gamma = 0.3

    def kernel(a: torch.Tensor, b: torch.Tensor) -> float:
        return math.exp(-gamma * sum((float(p) - float(q)) ** 2 for p, q in zip(a, b, strict=True)))

    within_t = sum(kernel(a, b) for a in Z_T for b in Z_T) / T**2
    within_x = sum(kernel(a, b) for a in Z_X for b in Z_X) / N**2
    across = sum(kernel(a, b) for a in Z_T for b in Z_X) / (T * N)
    expected = within_t + within_x - 2 * across
    assert float(alignment_loss(Z_X, Z_T, (1.0,), gamma)) == pytest.approx(expected)


def test_alignment_loss_is_zero_for_equal_sets_and_finite_for_collapsed_ones() -> None:
    assert float(alignment_loss(Z_X, Z_X)) == pytest.approx(0.0, abs=1e-12)
    collapsed = torch.ones(6, B)
    assert float(alignment_loss(collapsed, collapsed)) == pytest.approx(0.0, abs=1e-6)


def test_the_gradient_of_alignment_is_that_of_finite_differences() -> None:
    weight = torch.arange(1, N + 1, dtype=torch.float64)
    weight /= weight.sum()

    def mmd(z: torch.Tensor, z_target: torch.Tensor) -> torch.Tensor:
        return alignment_loss(z, z_target, (1.0, 4.0, 16.0), 0.3, weight)

    both = Z_X.clone().requires_grad_(), Z_T.clone().requires_grad_()
    assert torch.autograd.gradcheck(mmd, both)  # type: ignore[no-untyped-call]


def test_balanced_weights_give_related_and_unrelated_pairs_one_half_each() -> None:
    related, unrelated = pair_weights(float(S.mean()))
    assert float((related * S).sum()) == pytest.approx(N * M / 2)
    assert float((unrelated * (1 - S)).sum()) == pytest.approx(N * M / 2)
    assert pair_weights(0.3, balanced=False) == (1.0, 1.0)


def test_a_soft_relation_is_the_mixture_of_both_outcomes() -> None:
    weights = pair_weights(0.3)
    half = relation_loss(Z_X, Z_Y, torch.full_like(S, 0.25), weights)
    all_related = relation_loss(Z_X, Z_Y, torch.ones_like(S), weights)
    none_related = relation_loss(Z_X, Z_Y, torch.zeros_like(S), weights)
    assert float(half) == pytest.approx(float(0.25 * all_related + 0.75 * none_related))


def test_unknown_pairs_do_not_count() -> None:
    known = torch.ones_like(S)
    known[0, 0] = 0
    changed = S.clone()
    changed[0, 0] = 1 - S[0, 0]
    assert relation_loss(Z_X, Z_Y, S, known=known) == relation_loss(Z_X, Z_Y, changed, known=known)


def test_dcmh_loss_matches_its_definition_by_loops() -> None:
    outputs, others = torch.randn(3, B).double(), torch.randn(M, B).double()
    s, rest = S[:3], torch.randn(B).double()
    total = 0.0
    for i in range(3):
        for j in range(M):
            theta = 0.5 * dot(outputs[i], others[j])
            total += math.log(1 + math.exp(theta)) - float(s[i, j]) * theta
    total += sum((float(v) - (1 if v > 0 else -1)) ** 2 for row in outputs for v in row)
    total += sum((float(outputs[:, k].sum()) + float(rest[k])) ** 2 for k in range(B))
    result = float(dcmh_loss(outputs, others, s, rest, 1.0, 1.0))
    assert result == pytest.approx(total / (3 * M))
    # Codes shared with the partners replace the signs of the outputs in ||B - F||².
    codes = torch.where(torch.randn(3, B) > 0, 1.0, -1.0).double()
    own = torch.where(outputs > 0, 1.0, -1.0)
    shared = float(dcmh_loss(outputs, others, s, rest, 1.0, 1.0, codes=codes))
    change = sum(
        (float(v) - float(c)) ** 2 - (float(v) - float(o)) ** 2
        for v, c, o in zip(outputs.flatten(), codes.flatten(), own.flatten(), strict=True)
    )
    assert shared == pytest.approx((total + change) / (3 * M))


def test_autograd_equals_the_papers_residual_except_a_factor_2_of_mmd() -> None:
    """Eq. (deltaC) is the gradient of a point-wise cost with the other points frozen: each kernel
    value also occurs in the other point's cost, so the true MMD gradient is twice the printed."""
    lam, mu, gamma = 0.01, 0.7, 0.3
    pre = torch.randn(N, B, dtype=torch.float64, requires_grad=True)
    z = torch.tanh(pre)
    # Sums as printed: L and Q over all pairs.
    loss = N * M * relation_loss(z, Z_Y, S)
    quant = M * N * quantization_loss(z, floor=1e-12)
    align = alignment_loss(z, Z_T, (1.0,), gamma)
    grads = [torch.autograd.grad(term, pre, retain_graph=True)[0] for term in (loss, quant, align)]
    z = z.detach()
    slope = 1 - z**2
    sigma = torch.sigmoid(z @ Z_Y.T)
    printed_l = ((sigma - S) @ Z_Y) * slope
    printed_q = -M / z * slope
    own = torch.exp(-gamma * torch.cdist(z, z) ** 2)
    other = torch.exp(-gamma * torch.cdist(z, Z_T) ** 2)
    near = (own[:, :, None] * (z[:, None] - z[None])).sum(dim=1) / N**2
    far = (other[:, :, None] * (z[:, None] - Z_T[None])).sum(dim=1) / (N * T)
    printed_d = 2 * gamma * (far - near) * slope
    assert torch.allclose(grads[0], printed_l)
    assert torch.allclose(lam * grads[1], lam * printed_q)
    assert torch.allclose(mu * grads[2], 2 * mu * printed_d)
