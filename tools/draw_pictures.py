#!/usr/bin/env python3
"""Draws the pictures of the documentation that are checked in as SVG.

    draw_pictures.py FOLDER        writes collectives.svg there; docs/ is the folder to check in
"""
import os
import sys

COLOURS = {"A": "#4e79a7", "B": "#f28e2b", "C": "#59a14f", "D": "#b07aa1", "sum": "#333333", "": "#ffffff"}
RANKS = 4
CELL, GAP, ROW = 22, 2, 28  # pixels of a cell, between two, and from one rank to the next
PANEL = (288, 196)          # of one collective

# Of each collective what a rank has before and after it, in one cell for each piece.
ALL = ["A", "B", "C", "D"]
OWN = [[piece] for piece in ALL]
NONE = [[] for _ in ALL]
COLLECTIVES = (
    ("broadcast", "every rank gets what rank 0 has", [["A"], [], [], []], [["A"]] * RANKS),
    ("reduce", "rank 0 gets the sum", OWN, [["sum"], *OWN[1:]]),
    ("all_reduce", "every rank gets the sum", OWN, [["sum"]] * RANKS),
    ("scatter", "every rank gets a piece of rank 0's", [ALL, *NONE[1:]], OWN),
    ("gather", "rank 0 gets a piece of every rank", OWN, [ALL, *NONE[1:]]),
    ("all_gather", "every rank gets all pieces", OWN, [ALL] * RANKS),
)


def text(x, y, words, size=13, anchor="start", colour="#222222", weight="normal"):
    return (f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
            f'font-weight="{weight}">{words}</text>')


def cells(x, y, pieces):
    """The cells of a rank; one without data is an empty place."""
    for place, piece in enumerate(pieces or [""]):
        left = x + place * (CELL + GAP)
        edge = COLOURS[piece] if piece else "#bbbbbb"
        yield (f'<rect x="{left}" y="{y}" width="{CELL}" height="{CELL}" rx="3" fill="{COLOURS[piece]}" stroke="{edge}"'
               + ("/>" if piece else ' stroke-dasharray="3 2"/>'))
        if piece:
            yield text(left + CELL / 2, y + 15, "Σ" if piece == "sum" else piece, 13, "middle", "#ffffff", "bold")


def panel(x, y, name, about, before, after):
    yield text(x, y + 14, name, 15, weight="bold")
    yield text(x, y + 32, about, 12, colour="#555555")
    for rank in range(RANKS):
        top = y + 46 + rank * ROW
        yield text(x, top + 15, f"rank {rank}", 11, colour="#555555")
        yield from cells(x + 46, top, before[rank])
        yield from cells(x + 46 + 4 * (CELL + GAP) + 22, top, after[rank])
    middle, arrow = y + 46 + RANKS * ROW / 2 - 3, x + 46 + 4 * (CELL + GAP)
    yield f'<path d="M{arrow + 2} {middle}h12m-4 -4l4 4l-4 4" fill="none" stroke="#555555" stroke-width="1.5"/>'


def collectives():
    width, height = 3 * PANEL[0] + 20, 2 * PANEL[1] + 10
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="sans-serif" role="img">')
    yield "<title>What each of six collectives does with the data of four ranks</title>"
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    for number, (name, about, before, after) in enumerate(COLLECTIVES):
        yield from panel(16 + number % 3 * PANEL[0], 14 + number // 3 * PANEL[1], name, about, before, after)
    yield "</svg>"


PICTURES = {"collectives.svg": collectives}


def main(folder):
    for name, lines in PICTURES.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write("\n".join(lines()) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
