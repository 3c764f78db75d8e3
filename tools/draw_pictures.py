#!/usr/bin/env python3
"""Draws the pictures of the documentation that are checked in as SVG.

    draw_pictures.py FOLDER        writes every picture there; docs/pictures is the folder to check in

A picture has a page of its own, light or dark as the reader's system is, so that it can be read on any background.
"""
import os
import sys

# What a colour means in all pictures of steps; white text can be read on each.
COLOURS = {"forward": "#3a6ea5", "backward": "#7a559c", "alone": "#b3541e", "communication": "#b3541e", "update": "#2f7d4f",
           "input": "#59636e", "other": "#59636e"}
PIECES = {"A": "#3a6ea5", "B": "#b3541e", "C": "#2f7d4f", "D": "#7a559c", "sum": "#59636e"}
DEVICES = ("#3a6ea5", "#b3541e", "#2f7d4f")
STYLE = """<style>
.page{fill:#ffffff}.ink{fill:#1f2328}.dim{fill:#59636e}.white{fill:#ffffff}.empty{fill:none;stroke:#8c959f;stroke-dasharray:3 2}
.line{fill:none;stroke:#59636e;stroke-width:1.5}.head{fill:#59636e}
@media (prefers-color-scheme:dark){.page{fill:#161b22}.ink{fill:#e6edf3}.dim{fill:#b1bac4}
.line{stroke:#b1bac4}.head{fill:#b1bac4}}
</style>"""
HEAD = ('<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>')


def page(width, height, title, parts):
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="sans-serif" role="img">')
    yield f"<title>{title}</title>"
    yield STYLE
    yield HEAD
    yield f'<rect class="page" width="{width}" height="{height}" rx="6"/>'
    yield from parts
    yield "</svg>"


def text(x, y, words, size=13, anchor="start", kind="ink", weight="normal"):
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">{words}</text>'


def box(x, y, width, height, colour, words="", size=12):
    """A filled box with words in its middle; without a colour an empty place."""
    fill = f'fill="{colour}"' if colour else 'class="empty"'
    yield f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" {fill}/>'
    if words:
        yield text(x + width / 2, y + height / 2 + size * 0.36, words, size, "middle", "white" if colour else "dim", "bold")


def arrow(x, y, to_x, to_y):
    return f'<path class="line" d="M{x:g} {y:g}L{to_x:g} {to_y:g}" marker-end="url(#head)"/>'


# Of each collective what a rank has before and after it, in one cell for each piece.
RANKS = 4
CELL, GAP, ROW = 22, 2, 28  # pixels of a cell, between two, and from one rank to the next
PANEL = (288, 196)          # of one collective
ALL = ["A", "B", "C", "D"]
OWN = [[piece] for piece in ALL]
NONE = [[] for _ in ALL]
COLLECTIVES = (
    ("broadcast", "every rank gets the data of rank 0", [["A"], [], [], []], [["A"]] * RANKS),
    ("reduce", "rank 0 gets the sum", OWN, [["sum"], *OWN[1:]]),
    ("all_reduce", "every rank gets the sum", OWN, [["sum"]] * RANKS),
    ("scatter", "every rank gets one of rank 0's pieces", [ALL, *NONE[1:]], OWN),
    ("gather", "rank 0 gets the pieces of all ranks", OWN, [ALL, *NONE[1:]]),
    ("all_gather", "every rank gets all pieces", OWN, [ALL] * RANKS),
)


def cells(x, y, pieces):
    for place, piece in enumerate(pieces or [""]):
        yield from box(x + place * (CELL + GAP), y, CELL, CELL, PIECES.get(piece), "Σ" if piece == "sum" else piece)


def collective(x, y, name, about, before, after):
    yield text(x, y + 14, name, 15, weight="bold")
    yield text(x, y + 32, about, 12, kind="dim")
    for rank in range(RANKS):
        top = y + 46 + rank * ROW
        yield text(x, top + 15, f"rank {rank}", 11, kind="dim")
        yield from cells(x + 46, top, before[rank])
        yield from cells(x + 46 + 4 * (CELL + GAP) + 22, top, after[rank])
    middle, begin = y + 46 + RANKS * ROW / 2 - 3, x + 46 + 4 * (CELL + GAP)
    yield arrow(begin + 1, middle, begin + 18, middle)


def collectives():
    parts = (part for number, row in enumerate(COLLECTIVES)
             for part in collective(16 + number % 3 * PANEL[0], 14 + number // 3 * PANEL[1], *row))
    return page(3 * PANEL[0] + 20, 2 * PANEL[1] + 10, "What each of six collectives does with the data of four ranks", parts)


# The parts of a step of DataParallel: name, width, colour, whether all devices take part, and where numbers move.
DP_STEP = (
    ("input", 54, "alone", False, None),
    ("scatter", 66, "alone", False, "out"),
    ("replicate", 82, "alone", False, "out"),
    ("forward", 104, "forward", True, None),
    ("gather", 66, "alone", False, "in"),
    ("loss", 48, "alone", False, None),
    ("backward", 150, "backward", True, None),
    ("sum", 60, "alone", False, "in"),
    ("update", 66, "alone", False, None),
)


def dp_step_parts():
    left, top, row, height = 84, 64, 52, 30
    yield text(16, 26, "One step of PyTorch's DataParallel on three devices", 15, weight="bold")
    yield text(16, 46, "Time goes to the right, widths are not to scale. Orange: only device 0 has work, dashed: idle.", 12, kind="dim")
    for device in range(3):
        yield text(16, top + device * row + 20, f"device {device}", 12, kind="dim")
    x = left
    for name, width, colour, everywhere, moves in DP_STEP:
        for device in range(3):
            works = everywhere or device == 0
            y = top + device * row
            yield from box(x, y, width - 3, height, COLOURS[colour] if works else None, name if works else "")
            if moves and device > 0:
                away = x + (width - 3) * device / 3
                ends = (top + height + 1, y - 1) if moves == "out" else (y - 1, top + height + 1)
                yield arrow(away, ends[0], away, ends[1])
        x += width
    y = top + 3 * row + 6
    yield text(left, y, "Arrows: samples of the batch (scatter), all parameters (replicate), outputs (gather), all gradients (sum).", 12,
               kind="dim")


def dp_step():
    return page(800, 244, "A step of DataParallel: device 0 has the work of every part, the others only forward and backward",
                dp_step_parts())


def lane(x, y, parts, height=28):
    """Boxes one after the other: (words, width, colour); without a colour nothing is drawn."""
    for words, width, colour in parts:
        if colour != "gap":
            yield from box(x, y, width - 3, height, COLOURS.get(colour), words)
        x += width


DDP_COMPUTE = (("input", 56, "input"), ("forward", 104, "forward"), ("loss", 46, "input"), ("fc2", 36, "backward"),
               ("fc1", 70, "backward"), ("conv2", 104, "backward"), ("conv1", 80, "backward"), ("", 74, None), ("update", 66, "update"))
DDP_SENT = (("", 312, "gap"), ("all_reduce of bucket 0", 164, "communication"), ("", 20, "gap"), ("bucket 1", 74, "communication"))
AVERAGED = (*DDP_COMPUTE[:7], ("", 8 * 20, None), DDP_COMPUTE[8])
AVERAGED_SENT = (("", 496, "gap"), *((str(i), 20, "communication") for i in range(8)))


def ddp_step_parts():
    left, top = 84, 66
    yield text(16, 26, "One step of DistributedDataParallel on two ranks", 15, weight="bold")
    yield text(16, 46, "Time goes to the right, widths are not to scale. Purple: backward, from the last layer to the first. Dashed: waiting.", 12,
               kind="dim")
    for name, parts in (("rank 0", DDP_COMPUTE), ("link", DDP_SENT), ("rank 1", DDP_COMPUTE)):
        yield text(16, top + 19, name, 12, kind="dim")
        yield from lane(left, top, parts)
        top += 34
    yield text(16, top + 42, "The same step with gradients averaged by hand", 15, weight="bold")
    yield text(16, top + 62, "One all_reduce for each of the eight parameters, after backward: no communication is hidden.", 12,
               kind="dim")
    for name, parts in (("each rank", AVERAGED), ("link", AVERAGED_SENT)):
        yield text(16, top + 97, name, 12, kind="dim")
        yield from lane(left, top + 78, parts)
        top += 34


def ddp_step():
    return page(822, 322, "A step of DistributedDataParallel: a bucket is summed while backward continues with earlier layers",
                ddp_step_parts())


# The chunked ring of ddp/tutorial.cpp: what each rank has of each chunk, as the ranks whose numbers were added up.
def ring_states():
    have = [[[rank] for _ in range(RANKS)] for rank in range(RANKS)]
    yield "at the start", None, have
    for step in range(2 * (RANKS - 1)):
        adds = step < RANKS - 1
        back = step if adds else step - RANKS
        sent = [(rank, (rank - back) % RANKS) for rank in range(RANKS)]
        have = [[list(chunk) for chunk in of_rank] for of_rank in have]
        arrived = [(rank, chunk, list(have[rank][chunk])) for rank, chunk in sent]
        for rank, chunk, values in arrived:
            right = (rank + 1) % RANKS
            have[right][chunk] = values + have[right][chunk] if adds else values
        yield (f"add, step {step + 1}" if adds else f"copy, step {step - RANKS + 2}",
               {((rank + 1) % RANKS, chunk) for rank, chunk in sent}, have)


def ring_panel(x, y, name, arrived, have):
    shades = ("#8c6bb1", "#7a559c", "#5e3c84", "#2f7d4f")
    yield text(x + 46, y + 14, name, 14, weight="bold")
    for chunk in range(RANKS):
        yield text(x + 46 + chunk * 45 + 21, y + 34, f"chunk {chunk}", 9, "middle", "dim")
    for rank in range(RANKS):
        top = y + 40 + rank * 27
        yield text(x, top + 16, f"rank {rank}", 11, kind="dim")
        for chunk in range(RANKS):
            values = have[rank][chunk]
            words = "Σ" if len(values) == RANKS else "+".join(map(str, values))
            left = x + 46 + chunk * 45
            yield from box(left, top, 42, 23, shades[len(values) - 1], words, 10)
            if arrived and (rank, chunk) in arrived:
                yield f'<rect class="line" x="{left - 1}" y="{top - 1}" width="44" height="25" rx="4"/>'


def ring_parts():
    yield text(16, 26, "All-reduce as a ring of four ranks: 3 steps that add, 3 steps that copy", 15, weight="bold")
    yield text(16, 46, "In every step a rank sends one chunk, a quarter of the buffer, to its right neighbour. Framed: just "
               "arrived. 0+1: the sum of ranks 0 and 1.", 12, kind="dim")
    for number, state in enumerate(ring_states()):
        place = number if number < 4 else number + 1
        yield from ring_panel(16 + place % 4 * 242, 62 + place // 4 * 168, *state)
    x, y, radius = 134, 62 + 168 + 78, 46  # the ring itself
    corners = [(x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y)]
    for rank, (at_x, at_y) in enumerate(corners):
        to_x, to_y = corners[(rank + 1) % RANKS]
        step_x, step_y = (to_x - at_x) * 0.34, (to_y - at_y) * 0.34
        yield arrow(at_x + step_x, at_y + step_y, to_x - step_x, to_y - step_y)
        yield f'<circle cx="{at_x}" cy="{at_y}" r="13" fill="{COLOURS["input"]}"/>'
        yield text(at_x, at_y + 4, str(rank), 12, "middle", "white", "bold")


def ring():
    return page(16 + 4 * 242 + 4, 400, "A ring all-reduce of four ranks: after three steps each rank has the whole sum of one chunk, "
                "after three more it has all", ring_parts())


def owners_parts():
    blocks, devices = 8, 3
    left, width, leaf_y, level = 120, 76, 84, 58
    yield text(16, 26, "Three devices own the eight blocks of a batch", 15, weight="bold")
    yield text(16, 46, "All sums follow this tree. Framed: a device publishes the sum of each largest branch that is all its own.", 12, kind="dim")
    owner = [next(w for w in range(devices) if (w + 1) * blocks // devices > block) for block in range(blocks)]

    def node(low, high):
        """(x, y) of the sum of blocks low to high - 1, after all below it has been drawn"""
        of = owner[low] if len(set(owner[low:high])) == 1 else None
        depth = (high - low).bit_length() - 1
        x, y = left + (low + high) / 2 * width - width / 2 + 32, leaf_y + depth * level + 14
        lines, drawn = [], []
        if high - low > 1:
            middle = (low + high) // 2
            for part in ((low, middle), (middle, high)):
                below, (from_x, from_y) = node(*part)
                drawn += below
                lines.append(f'<path class="line" d="M{from_x:g} {from_y + 14:g}L{x:g} {y - 14:g}"/>')
        drawn += lines
        words = f"block {low}" if high - low == 1 else ("sum" if high - low == blocks else f"{low}..{high - 1}")
        drawn += box(x - 32, y - 14, 64, 28, COLOURS["other"] if of is None else DEVICES[of], words)
        own = of is not None
        aligned = high - low < blocks and [owner[i] for i in range(low // (2 * (high - low)) * 2 * (high - low),
                                                                   (low // (2 * (high - low)) + 1) * 2 * (high - low))]
        if own and len(set(aligned)) > 1:
            drawn.append(f'<rect class="line" x="{x - 36:g}" y="{y - 18:g}" width="72" height="36" rx="5"/>')
        return drawn, (x, y)

    yield from node(0, blocks)[0]
    for device, colour in enumerate(DEVICES):
        yield from box(16, leaf_y + 62 + device * 32, 84, 24, colour, f"device {device}")
    yield from box(16, leaf_y + 62 + 96, 84, 24, COLOURS["other"], "joined")


def owners():
    return page(744, 296, "Eight blocks of a batch, owned by three devices, and the tree over them: device 0 publishes the sum of "
                "blocks 0 and 1, device 1 the sum of 2 and 3, and block 4, device 2 block 5, and the sum of 6 and 7", owners_parts())


# What lies in memory for two devices, from the bottom up: (words, height, colour).
VALUES, MOMENTUM = ("parameters", 30, "forward"), ("momentum", 30, "update")
SUM, OWN_GRADIENTS, GRADIENTS = (("sum of gradients", 30, "backward"), ("own gradients", 30, "backward"),
                                 ("gradients", 30, "backward"))
HALF = ("activations of B/2", 56, "other")
MEMORY = (
    ("DataParallel, PyTorch", "one process, two GPUs", (
        ("GPU 0", (VALUES, SUM, MOMENTUM, OWN_GRADIENTS, HALF, ("outputs of B", 30, "alone"))),
        ("GPU 1", (("copied parameters", 30, "forward"), OWN_GRADIENTS, HALF)))),
    ("DataParallel, duet", "one process, two CPU devices", (
        ("main memory", (VALUES, SUM, MOMENTUM, OWN_GRADIENTS, OWN_GRADIENTS, HALF, HALF, ("outputs of B", 30, "alone"))),)),
    ("DistributedDataParallel", "two processes", (
        ("rank 0", (VALUES, GRADIENTS, MOMENTUM, HALF)),
        ("rank 1", (VALUES, GRADIENTS, MOMENTUM, HALF)))),
)


def memory_parts():
    yield text(16, 26, "Memory of a step, by process", 15, weight="bold")
    yield text(16, 46, "A batch of B samples on two devices; heights are not to scale. Each process also has the program and its "
               "data.", 12, kind="dim")
    x, floor, wide = 16, 418, 158
    for name, about, places in MEMORY:
        yield text(x, 76, name, 13, weight="bold")
        yield text(x, 93, about, 12, kind="dim")
        for place, held in places:
            y = floor
            for words, height, colour in held:
                y -= height
                yield from box(x, y, wide - 4, height - 3, COLOURS[colour], words, 11)
            yield text(x + wide / 2 - 2, floor + 18, place, 12, "middle", "dim")
            x += wide
        x += 22 if len(places) > 1 else 42


def memory():
    return page(882, 450, "Memory of two devices: PyTorch's DataParallel fills GPU 0 more than GPU 1, duet's has one set of parameters on "
                "CPU devices, DistributedDataParallel has all of it once for each rank", memory_parts())


COST = (
    ("one device", "T(B) = f + p B", (("f", 54, "other"), ("p B", 440, "forward"))),
    ("ideal on two", "T(B) / 2", (("f/2", 27, "other"), ("p B / 2", 220, "forward"))),
    ("ddp on two", "T(B/2) + s + w + c + x", (("f", 54, "other"), ("p B / 2", 220, "forward"), ("s", 44, "backward"), ("w", 36, None),
                                         ("c", 50, "communication"), ("x", 22, "other"))),
)
COST_WORDS = ("f: the fixed part of a step. p: the time of one sample. B: samples in a batch.",
              "s: two devices slow each other down. w: waiting for the slower rank.",
              "c: communication that backward doesn't hide. x: the wrapper, and the unexplained rest.")


def cost_parts():
    yield text(16, 26, "Why two devices aren't twice as fast", 15, weight="bold")
    yield text(16, 46, "The time of a step; widths are not to scale.", 12, kind="dim")
    for number, (name, formula, parts) in enumerate(COST):
        y = 66 + number * 46
        yield text(16, y + 13, name, 12, weight="bold")
        yield text(16, y + 29, formula, 12, kind="dim")
        yield from lane(166, y, parts, 32)
    yield f'<path class="line" d="M{166 + 247} 60V208" stroke-dasharray="4 3"/>'
    for number, words in enumerate(COST_WORDS):
        yield text(16, 226 + 18 * number, words, 12, kind="dim")


def cost():
    return page(690, 274, "A step on one device, half of it, and the additional parts of a step of ddp on two devices", cost_parts())


# Rank 1 is lost in step 8, and what follows.
RECOVERY = (
    ("launcher", (("", 186, "gap"), ("generation 1", 96, "other"))),
    ("rank 0", (("step 7", 90, "forward"), ("step 8, waits", 96, "forward"), ("discarded", 96, None), ("waits for rank 1", 120, None),
                ("gives state", 110, "communication"), ("step 8 again", 110, "forward"), ("step 9", 80, "forward"))),
    ("rank 1", (("step 7", 90, "forward"), ("step 8", 60, "forward"), ("", 36, "gap"), ("new process", 216, "alone"),
                ("takes state", 110, "communication"), ("step 8 again", 110, "forward"), ("step 9", 80, "forward"))),
    ("rank 2", (("step 7", 90, "forward"), ("step 8, waits", 96, "forward"), ("discarded", 96, None), ("waits for rank 1", 230, None),
                ("step 8 again", 110, "forward"), ("step 9", 80, "forward"))),
)


def recovery_parts():
    yield text(16, 26, "Rank 1 of an elastic job is killed in step 8", 15, weight="bold")
    yield text(16, 46, "Time goes to the right, widths are not to scale. Dashed: waiting.", 12, kind="dim")
    for number, (name, parts) in enumerate(RECOVERY):
        y = 66 + 36 * number
        yield text(16, y + 19, name, 12, kind="dim")
        yield from lane(84, y, parts)
    yield text(84 + 153, 66 + 72 + 20, "✕", 17, weight="bold")


def recovery():
    return page(802, 214, "Rank 1 is killed, the others discard the step, a new process takes the state of rank 0, and the step "
                "is repeated", recovery_parts())


# After each epoch of docs/contributing/evidence_networks.md: (name, colour, test losses, test accuracies).
TRAININGS = (
    ("duet", "forward", (0.3776, 0.3881, 0.2525, 0.2362, 0.2340, 0.2140, 0.1955, 0.1746, 0.1627, 0.1595),
     (85.99, 86.38, 90.81, 91.37, 91.27, 92.09, 92.87, 93.56, 94.02, 94.13)),
    ("PyTorch", "alone", (0.3689, 0.5486, 0.2606, 0.2445, 0.2390, 0.2102, 0.1944, 0.1765, 0.1580, 0.1554),
     (86.29, 81.75, 90.78, 91.07, 91.09, 92.20, 92.97, 93.75, 94.18, 94.21)),
)


def curves(x, title, ticks, form, lines):
    """A panel of curves over the epochs; ticks are values, from the lowest up. lines: (colour, values)"""
    left, width, top, height, epochs = x + 34, 266, 78, 190, len(lines[0][1])
    low, high = ticks[0], ticks[-1]
    yield text(x, 64, title, 13, weight="bold")
    for tick in ticks:
        y = top + height * (high - tick) / (high - low)
        yield f'<path class="line" d="M{left} {y:g}h{width}" stroke-opacity="0.35"/>'
        yield text(left - 6, y + 4, format(tick, form), 11, "end", "dim")
    for epoch in range(epochs):
        yield text(left + width * (epoch + 0.5) / epochs, top + height + 18, str(epoch + 1), 11, "middle", "dim")
    for colour, values in lines:
        points = [f"{left + width * (epoch + 0.5) / epochs:g} {top + height * (high - value) / (high - low):g}"
                  for epoch, value in enumerate(values)]
        yield f'<path d="M{"L".join(points)}" fill="none" stroke="{COLOURS[colour]}" stroke-width="2" stroke-linejoin="round"/>'


def training_parts():
    yield text(16, 26, "ResNet-18 learns Fashion-MNIST", 15, weight="bold")
    yield text(16, 45, "On the test images, after each epoch.", 12, kind="dim")
    for number, (name, colour, _, _) in enumerate(TRAININGS):
        yield from box(300 + 124 * number, 12, 118, 19, COLOURS[colour], name, 11)
    losses, accuracies = ([(training[1], training[part]) for training in TRAININGS] for part in (2, 3))
    yield from curves(16, "Test loss", (0, 0.2, 0.4, 0.6, 0.8), ".1f", losses)
    yield from curves(366, "Test accuracy, per cent", (80, 85, 90, 95), "g", accuracies)


def training():
    return page(690, 302, "Test loss and accuracy of ResNet-18 on Fashion-MNIST after each epoch", training_parts())


PICTURES = {"collectives.svg": collectives, "cost.svg": cost, "ddp_step.svg": ddp_step, "dp_step.svg": dp_step,
            "memory.svg": memory, "owners.svg": owners, "recovery.svg": recovery, "ring.svg": ring, "training.svg": training}


def main(folder):
    for name, draw in PICTURES.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write("\n".join(draw()) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
