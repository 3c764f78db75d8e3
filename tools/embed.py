#!/usr/bin/env python3
"""Writes C++ that holds files: page_file(NAME) of compare/report/page/page.h.

    embed.py OUTPUT NAME=FILE...     an empty FILE: NAME is empty
"""
import sys

PIECE = 12000  # characters; compilers must take literals of 65,536 bytes


def literal(text):
    return f'R"duet~({text})duet~"'


def main():
    lines = ["#include <string>", "#include <string_view>", "", '#include "compare/report/page/page.h"', "", "namespace duet::cli {", "",
             "std::string page_file(const std::string& name) {", "  std::string text;"]
    for argument in sys.argv[2:]:
        name, path = argument.split("=", 1)
        text = ""
        if path:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        if name.endswith(".js") and "</script" in text:
            sys.exit(f"embed.py: {path} holds </script, which would end the script of a page")
        pieces = [text[i:i + PIECE] for i in range(0, len(text), PIECE)]
        lines += [f'  if (name == "{name}")', f"    for (const std::string_view piece : {{std::string_view(),",
                  ",\n".join(f"std::string_view({literal(piece)})" for piece in pieces) + "})", "      text += piece;"]
    lines += ["  return text;", "}", "", "}  // namespace duet::cli"]
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


main()
