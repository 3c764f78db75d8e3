#!/usr/bin/env python3
"""Mistakes in a network of one's own that the compiler must refuse, and what its message must say.

    compile_messages.py COMPILER... ROOT

The last line reads "N passed, N failed, N skipped".
"""
import subprocess
import sys

HEAD = '#include <memory>\n#include "lib/nn/chain.h"\n#include "lib/nn/layers.h"\n#include "lib/ops/ops.h"\nusing namespace duet;\n'
NET = "struct Net : nn::Module {\n  nn::Linear fc{4, 2};\n  %s\n  using nn::Module::forward;\n};\n"
# Name -> code, and what the message must hold; empty: it must compile.
CASES = {
    "a right network": (NET % "Variable forward(nn::Context& c, const Variable& x) const override { return fc.forward(c, x); }\n"
                              "  Variable other(nn::Context& c, const Variable& x) { return fc.forward(c, x); }"
                        + "Variable run(Net& net, const Tensor& x) { return net(x) + net(Variable(x)); }\n"
                          "nn::Sequential net(std::make_unique<nn::Linear>(4, 2), std::make_unique<nn::ReLU>());\nnn::Sequential none;\n", ""),
    "forward that is not const": (NET % "Variable forward(nn::Context& c, const Variable& x) { return fc.forward(c, x); }",
                                  "write: Variable forward(Context&, const Variable&) const override"),
    "forward that is not const, with override": (
        NET % "Variable forward(nn::Context& c, const Variable& x) override { return fc.forward(c, x); }",
        "write: Variable forward(Context&, const Variable&) const override"),
    "forward of values that is not const": (NET % "nn::Value forward(nn::Context&, const nn::Value& x) { return x; }",
                                            "write: Value forward(Context&, const Value&) const override"),
    "layer(x) inside forward": (NET % "Variable forward(nn::Context&, const Variable& x) const override { return fc(x); }",
                                "inside forward write: layer.forward(context, x)"),
    "layers in a Sequential's list": ("nn::Sequential net{nn::Linear(4, 2), nn::ReLU()};\n",
                                      "write nn::Sequential(std::make_unique<nn::Linear>(4, 2), std::make_unique<nn::ReLU>())"),
}


def main():
    *compiler, root = sys.argv[1:]
    failed = 0
    for name, (code, expected) in CASES.items():
        run = subprocess.run([*compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", root, "-x", "c++", "-"],
                             input=HEAD + code, text=True, stderr=subprocess.PIPE)
        right = run.returncode == 0 if expected == "" else run.returncode != 0 and expected in run.stderr
        if not right:
            failed += 1
            print(f"{name}: expected {expected or 'no message'!r}, got\n{run.stderr}")
    print(f"{len(CASES) - failed} passed, {failed} failed, 0 skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
