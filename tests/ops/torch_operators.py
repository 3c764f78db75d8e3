#!/usr/bin/env python3
"""Computes the cases of test_torch.cpp by PyTorch, and says where duet's values or gradients differ.

    torch_operators.py FOLDER      FOLDER: that of the files "cases*"
"""
import glob
import sys
from collections import Counter

import torch
from safetensors import safe_open
from torch.nn import functional as F

# Element by element; all others add up, and differ by rounding relative to their largest element.
ELEMENTWISE = {"arithmetic", "exp", "log", "sqrt", "sigmoid", "tanh", "gelu", "leaky_relu", "relu"}

# Their gradients are differences of sums, of which the order decides whether infinity stays or becomes NaN.
OF_SEVERAL_SUMS = {"layer_norm", "cross_entropy"}


def arithmetic(x, constant, op, side, number=0.0):
    number = torch.tensor(number, dtype=x[0].dtype)  # a float divided by a tensor would be its reciprocal times the float
    a, b = {0: (x[0], number), 1: (number, x[0]), 2: (x[0], x[0])}.get(int(side)) or x
    return (a + b, a - b, a * b, a / b)[int(op)]


def classes_second(x):
    """duet has classes last, PyTorch in dimension 1, where its backward asks for this order in memory."""
    return x.movedim(-1, 1).contiguous()


def reduced(function):
    def run(x, _, keepdim, *dims):
        return function(x[0], [int(d) for d in dims] or None, keepdim=bool(keepdim))
    return run


def layer_norm(x, _, rank):
    return F.layer_norm(x[0], x[0].shape[-int(rank):], *x[1:])


def convolution(function, takes_output_padding):
    def run(x, _, stride, padding, output_padding, groups):
        more = {"output_padding": int(output_padding)} if takes_output_padding else {}
        return function(x[0], x[1], x[2] if len(x) > 2 else None, stride=int(stride), padding=int(padding), groups=int(groups), **more)
    return run


def gelu(x, _):
    """PyTorch's vector code doubles x first, which makes infinity of 3e38, and NaN of infinity."""
    y = F.gelu(x[0])
    y.data[x[0] > 1e38] = x[0].data[x[0] > 1e38]
    return y


def attention(x, _, causal):
    """PyTorch gives 0 where all scores of a query are -infinity, duet what softmax gives, NaN."""
    query, key, value = x
    if all(one.isfinite().all() for one in x):
        return F.scaled_dot_product_attention(query, key, value, is_causal=bool(causal))
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)
    if causal:
        scores = scores + torch.full_like(scores, -torch.inf).triu(1)
    return torch.softmax(scores, -1) @ value


OPERATORS = {
    "arithmetic": arithmetic,
    "gelu": gelu,
    **{name: lambda x, _, f=getattr(F if name == "leaky_relu" else torch, name): f(x[0])
       for name in sorted(ELEMENTWISE - {"arithmetic", "gelu"})},
    "sum": reduced(torch.sum),
    "mean": reduced(torch.mean),
    "reshape": lambda x, _, *sizes: x[0].reshape(*map(int, sizes)),
    "flatten": lambda x, _: x[0].reshape(x[0].shape[0], x[0].shape[1:].numel()),
    "transpose": lambda x, _, a, b: x[0].transpose(int(a), int(b)),
    "slice": lambda x, _, d, begin, end: x[0].narrow(int(d), int(begin), int(end - begin)),
    "concat": lambda x, _: torch.cat(x, 1),
    "matmul": lambda x, _: x[0] @ x[1],
    "linear": lambda x, _: F.linear(*x),
    "softmax": lambda x, _, d: torch.softmax(x[0], int(d)),
    "log_softmax": lambda x, _, d: torch.log_softmax(x[0], int(d)),
    **{name: lambda x, target, f=getattr(F, name): f(x[0], target)
       for name in ("l1_loss", "mse_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")},
    "batch_mean": lambda x, _: x[0].mean(),
    "nll_loss": lambda x, labels: F.nll_loss(classes_second(x[0]), labels),
    "cross_entropy": lambda x, labels, smoothing: F.cross_entropy(classes_second(x[0]), labels, label_smoothing=smoothing),
    "conv2d": convolution(F.conv2d, False),
    "conv_transpose2d": convolution(F.conv_transpose2d, True),
    "max_pool2d": lambda x, _, kernel, stride, padding, counts: F.max_pool2d(x[0], int(kernel), int(stride), int(padding)),
    "avg_pool2d": lambda x, _, kernel, stride, padding, counts:
        F.avg_pool2d(x[0], int(kernel), int(stride), int(padding), count_include_pad=bool(counts)),
    "adaptive_avg_pool2d": lambda x, _, height, width: F.adaptive_avg_pool2d(x[0], (int(height), int(width))),
    "layer_norm": layer_norm,
    "embedding": lambda x, indices: F.embedding(indices, x[0]),
    "attention": attention,
}


def viewed(leaf, view):
    kind, *numbers = view.split()
    numbers = list(map(int, numbers))
    if kind == "t":
        return leaf.transpose(*numbers)
    return leaf.narrow(numbers[0], numbers[1], numbers[2] - numbers[1]) if kind == "s" else leaf


def computed(text, tensors, dtype):
    """The value, and the gradients of the leaves."""
    words, *views = text.split("|")
    name, *numbers = words.split()
    leaves = [tensors[f"input{i}"].detach().to(dtype, copy=True).requires_grad_() for i in range(len(views))]
    constant = tensors.get("constant0")
    if constant is not None and constant.dtype == torch.float32:
        constant = constant.to(dtype)
    y = OPERATORS[name]([viewed(*pair) for pair in zip(leaves, views)], constant, *map(float, numbers))
    y.backward(tensors["dy0"].to(dtype))
    return {"y0": y.detach(), **{f"gradient{i}": leaf.grad for i, leaf in enumerate(leaves)}}


def difference(name, what, got, expected, exact, dy):
    """What is wrong with `got`, or nothing. `exact`: `expected` computed in double."""
    if got is None or got.shape != expected.shape:
        return f"shape {None if got is None else list(got.shape)}, expected {list(expected.shape)}"
    finite = expected.isfinite()
    same = torch.where(finite, got.isfinite(), (got == expected) | (got.isnan() & expected.isnan()))
    same |= exact.isinf() & (got == exact)  # of an infinite gradient times a slope that underflows in float
    if name in OF_SEVERAL_SUMS and what != "y0":
        same = finite == got.isfinite()
    if name in ELEMENTWISE:
        scale = exact.abs() + dy
    else:
        scale = expected[finite].abs().max().double() + dy if finite.any() else 0
    error = (got.double() - expected.double()).abs()
    own = (expected.double() - exact).abs().nan_to_num(0, 0, 0)
    wrong = ~same | (finite & (error > 1e-5 * scale + 4 * own + 1e-37))
    if not wrong.any():
        return ""
    at = wrong.flatten().nonzero()[0].item()
    return (f"{wrong.sum().item()} of {got.numel()} elements, first {at}: {got.flatten()[at].item()!r}, "
            f"expected {expected.flatten()[at].item()!r}")


def differences(seed, text, tensors):
    """A line for each value or gradient that is not PyTorch's."""
    try:
        expected, exact = (computed(text, tensors, dtype) for dtype in (torch.float32, torch.float64))
    except Exception as error:  # a case that PyTorch refuses is one
        return [f"DUET_DRAW_FROM={seed} {text}: PyTorch: {error}"]
    dy = tensors["dy0"][tensors["dy0"].isfinite()].abs().tolist()
    shapes = ", ".join(str(list(tensor.shape)) for what, tensor in tensors.items() if what.startswith("input"))
    wrong = {what: difference(text.split("|")[0].split()[0], what, tensors.get(what), value, exact[what],
                              0 if what == "y0" else max(dy, default=0)) for what, value in expected.items()}
    return [f"DUET_DRAW_FROM={seed} {text} of {shapes}: {what}: {line}" for what, line in wrong.items() if line]


def main(folder):
    torch.set_num_threads(1)
    counts, lines = Counter(), []
    for path in sorted(glob.glob(folder + "/cases*")):
        with safe_open(path, "pt") as file:
            cases = {}
            for key in sorted(file.keys()):
                seed, what = key.split(".")
                cases.setdefault(seed, {})[what] = file.get_tensor(key)
            for seed, tensors in cases.items():
                text = file.metadata()[seed]
                counts[text.split("|")[0].split()[0]] += 1
                lines += differences(seed, text, tensors)
    print(f"{sum(counts.values())} cases, {len(lines)} differences: {dict(sorted(counts.items()))}", *lines, sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
