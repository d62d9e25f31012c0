"""Second derivatives of an op whose kernels have none: by differentiating its reference twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["second_derivatives"]


def second_derivatives(
    function: Callable[..., Sequence[Tensor]],
    grads: Sequence[Tensor],
    inputs: Sequence[Tensor | None],
    seconds: Sequence[Tensor | None],
    wide: torch.dtype,
) -> tuple[Tensor | None, ...]:
    """Backward of ``(grads, inputs) -> gradients of inputs``, itself differentiable.

    Args:
        function: ``function(*inputs)`` in plain torch, one output per tensor of grads. Called in ``wide``.
        grads: incoming gradients of the first backward, one per output.
        inputs: what the first backward gave gradients for; None for those there are not.
        seconds: incoming gradients of those gradients; None or ``[0]`` where there is none.
        wide: dtype to compute in.

    Returns:
        Gradients for ``(*grads, *inputs)``, each in its tensor's dtype.
    """
    given = [*grads, *inputs]
    with torch.enable_grad():
        # A view of its own for each, so that a tensor given twice is told apart; the results keep the caller's history.
        nodes = [
            None if t is None else (t if t.requires_grad else t.detach().requires_grad_()).view_as(t) for t in given
        ]
        cast = [None if t is None else t.to(wide) for t in nodes]
        outputs = function(*cast[len(grads) :])
        pairs = [
            (node, second)
            for node, second in zip(cast[len(grads) :], seconds, strict=True)
            if node is not None and second is not None and second.shape == node.shape
        ]
        wanted = [node for node in nodes if node is not None]
        if not pairs:
            return (None,) * len(given)
        first = torch.autograd.grad(
            outputs,
            [node for node, _ in pairs],
            [node for node in cast[: len(grads)] if node is not None],
            create_graph=True,
            materialize_grads=True,
        )
    results = torch.autograd.grad(
        [each for each in first if each.requires_grad],
        wanted,
        [second.to(wide) for each, (_, second) in zip(first, pairs, strict=True) if each.requires_grad],
        create_graph=torch.is_grad_enabled(),
        materialize_grads=True,
    )
    found = iter(results)
    return tuple(None if t is None else next(found) for t in given)
