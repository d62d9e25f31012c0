"""How an operator of this package is declared: schema, fake and autograd on the op's own page, through this one.

A differentiable op is called in two ways with the same formula. Eager code goes through a ``torch.autograd.Function``
and reaches the kernel below the autograd dispatch keys (10-16 us of host time, against 27-38 through a registered
formula); code that is being compiled, or runs under a dispatch mode, calls the registered op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["being_traced", "caching_allowed", "declare", "differentiable"]

_Fake = TypeVar("_Fake", bound=Callable[..., Any])


def being_traced() -> bool:
    """Whether this code is being compiled or runs under a dispatch mode: then nothing may be cached."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def caching_allowed() -> bool:
    """Whether tensors made now may be kept for later calls: not while tracing, nor while a CUDA graph is captured.

    What is made during capture belongs to that CUDA graph and holds nothing before its first replay.
    """
    if being_traced():
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def declare(name: str, schema: str) -> Callable[[_Fake], _Fake]:
    """Declares ``gnnagg::name`` with ``schema``; decorates its fake function (output shapes from input shapes)."""
    qualified = f"gnnagg::{name}"
    torch.library.define(qualified, schema)

    def register(fake: _Fake) -> _Fake:
        torch.library.register_fake(qualified)(fake)
        return fake

    return register


def differentiable(
    name: str,
    *,
    graph_of: Callable[[tuple[Any, ...]], Graph],
    save: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., tuple[Any, ...]],
) -> Callable[..., Any]:
    """Registers the gradient of ``gnnagg::name`` and returns ``call(graph, *op_args)``.

    Args:
        name: an op that was declared.
        graph_of: the Graph that the op's arguments describe; used where only the arguments are known (compiled code).
        save: ``save(ctx, op_args, output)`` keeps what backward needs; ``ctx.graph`` is set already.
        backward: ``backward(ctx, *grads)`` gives one gradient or None per op argument; ``ctx.needs`` says which are
            wanted. Made of differentiable calls, so that second derivatives exist.
    """
    op = getattr(torch.ops.gnnagg, name).default

    def save_registered(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.graph = graph_of(inputs)
        save(ctx, inputs, output)

    def backward_registered(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        ctx.needs = ctx.needs_input_grad
        return backward(ctx, *grads)

    torch.library.register_autograd(f"gnnagg::{name}", backward_registered, setup_context=save_registered)

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, graph: Graph, *args: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                output = op(*args)
            ctx.graph = graph
            save(ctx, args, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            ctx.needs = ctx.needs_input_grad[1:]
            return (None, *backward(ctx, *grads))

    Eager.__name__ = Eager.__qualname__ = name

    def call(graph: Graph, *args: Any) -> Any:
        if being_traced():
            return op(*args)
        graph.raise_known_fault()
        if torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
            return Eager.apply(graph, *args)  # type: ignore[no-untyped-call]
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args)

    return call
