#!/usr/bin/env python3
"""Records the losses of PyTorch for examples/autoencoder.cpp and char_gpt.cpp, to which check.py compares theirs.

    torch_losses.py      needs torch; writes golden/autoencoder_torch.txt and golden/char_gpt_torch.txt

Weights, order and samples are drawn by the seeds of the examples, so none of them is recorded.
"""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 20
BATCH = {"autoencoder": 64, "char_gpt": 32}
LENGTH, WIDTH, HEADS = 32, 32, 4


def pixels(image):
    """Stripes that depend on the number of the image."""
    across, down = 1 + image % 3, 1 + image % 5
    return bytes(255 - image % 7 if (x * across + y * down + image) // 6 % 3 == 0 else image % 50 for y in range(28) for x in range(28))


def write_mnist(folder):
    """Images in the files of MNIST."""
    for part, count in (("train", STEPS * BATCH["autoencoder"]), ("t10k", 100)):
        with open(f"{folder}/{part}-images-idx3-ubyte", "wb") as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28) + b"".join(map(pixels, range(count))))
        with open(f"{folder}/{part}-labels-idx1-ubyte", "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + bytes(image % 10 for image in range(count)))


def main():
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.norm2, self.wide, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            heads = [part.reshape(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2)
                     for part in self.qkv(self.norm1(x)).split(WIDTH, 2)]
            seen = F.scaled_dot_product_attention(*heads, is_causal=True)
            y = x + self.out(seen.transpose(1, 2).reshape(-1, LENGTH, WIDTH))
            return y + self.narrow(F.gelu(self.wide(self.norm2(y))))

    class CharGpt(nn.Module):
        def __init__(self, symbols):
            super().__init__()
            self.symbols, self.places = nn.Embedding(symbols, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.block1, self.block2, self.norm, self.head = Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, symbols)

        def forward(self, x):
            return self.head(self.norm(self.block2(self.block1(self.symbols(x) + self.places.weight))))

    def autoencoder():
        images = torch.tensor([list(pixels(image)) for image in range(STEPS * BATCH["autoencoder"])])
        images = images.reshape(-1, 1, 28, 28) / 255
        net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.LeakyReLU(), nn.Conv2d(16, 4, 3, 2, 1), nn.ConvTranspose2d(4, 16, 4, 2, 1),
                            nn.LeakyReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid())
        return images, net, torch.optim.Adam(net.parameters(), 0.003), lambda x: F.binary_cross_entropy(net(x), x)

    def char_gpt():
        with open(os.path.join(HERE, "../../LICENSE"), "rb") as file:
            text = file.read()
        symbols = sorted(set(text))
        text, samples = torch.tensor([symbols.index(byte) for byte in text]), []
        for sample in range(STEPS * BATCH["char_gpt"]):
            begin = torch.randint(0, len(text) - LENGTH, (), generator=torch.Generator().manual_seed(sample))
            samples.append(text[begin : begin + LENGTH + 1])
        torch.manual_seed(1)
        net = CharGpt(len(symbols))
        return (torch.stack(samples), net, torch.optim.AdamW(net.parameters(), 0.01),
                lambda x: F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()))

    for make in (autoencoder, char_gpt):
        torch.manual_seed(1)
        samples, _, optimizer, loss_of = make()
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(1))
        with open(f"{HERE}/golden/{make.__name__}_torch.txt", "w", encoding="utf-8") as file:
            for step, batch in enumerate(order.split(BATCH[make.__name__])):
                optimizer.zero_grad()
                loss = loss_of(samples[batch])
                loss.backward()
                optimizer.step()
                file.write(f"step {step}: loss {loss.item():.7f}\n")


if __name__ == "__main__":
    main()
