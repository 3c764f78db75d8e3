"""What campaign.py runs: trainings that write checkpoints, logs and records, and a comparison."""
import dataclasses
import glob
import shutil
import subprocess
import typing

from judge import content_of

TRAINING = "--data synthetic --train-images 128 --test-images 10 --model linear --batch 64 --quiet".split()
STEPS = 2  # of an epoch
SHARED = ("results.json", "index.html", "info.json", "command.txt")
OUTPUTS = ("result", "fingerprints", "step-times", "trace")
CHECKPOINT, RESUME = ["--checkpoint", "FOLDER/kept"], ["--resume", "FOLDER/kept"]


@dataclasses.dataclass
class Scenario:
    name: str
    command: typing.Callable  # (program, folder) -> arguments
    last: int = 0             # step of the checkpoint that it ends with; 0: it writes none
    outputs: tuple = ()       # files of the folder that it promises
    bits: dict = dataclasses.field(default_factory=dict)  # step -> the content of its checkpoint
    start: str = ""           # folder of checkpoints that it goes on from
    sample: tuple = ()        # roles of which some calls fail where not all do
    next: typing.Any = None   # scenario that follows in the same folder

    def prepare(self, folder):
        if self.start:
            shutil.copytree(self.start, folder + "/kept")


def train(epochs, *more):
    return lambda _, folder: [word.replace("FOLDER", folder) for word in ["train", *TRAINING, *more, "--epochs", str(epochs)]]


def launched(epochs):
    def command(program, folder):
        return ["launch", "-n", "2", "--log-dir", folder + "/log", "--redirects", "3", "--tee", "3", "--", program,
                *train(epochs, "--mode", "ddp", *RESUME)(program, folder)]
    return command


def compared(share):
    return lambda _, folder: ["compare", "--modes", "single", "--devices", "1", *TRAINING, "--time-budget", "0.1", "--out",
                              folder + "/out", "--json", folder + "/json", "--share", f"{folder}/{share}"]


def references(program, folder):
    """Step -> content of its checkpoint, of trainings that nothing disturbs, and a folder with those of two epochs."""
    bits = {}
    for epochs in range(1, 6):
        kept = f"{folder}/epochs-{epochs}"
        subprocess.run([program, *train(epochs, "--checkpoint", kept)(program, folder)], check=True,
                       stdout=subprocess.DEVNULL)
        bits[STEPS * epochs] = content_of(f"{kept}/checkpoint-{STEPS * epochs:08}.safetensors")
    return bits, f"{folder}/epochs-2"


def scenarios(program, scratch):
    bits, start = references(program, scratch)
    records = [word for file in (*OUTPUTS, "progress") for word in (f"--{file}", f"FOLDER/{file}")]
    ddp = ["--mode", "ddp", "--devices", "2"]

    def afterwards(program, folder):  # goes on where there is something to go on from
        kept = RESUME if glob.glob(folder + "/kept/checkpoint-*.safetensors") else CHECKPOINT
        return train(5, *kept, *records)(program, folder)

    after = Scenario("afterwards", afterwards, STEPS * 5, OUTPUTS, bits)
    trained = {"outputs": OUTPUTS, "bits": bits, "next": after}
    resumed = {"bits": bits, "start": start, "next": after}
    reports = ("json", "out/results.json", "out/results.csv", "out/index.html")
    return [
        Scenario("alone", train(3, *CHECKPOINT, *records), STEPS * 3, **trained, sample=("launcher",)),
        Scenario("alone, resumed", train(4, *RESUME), STEPS * 4, **resumed),
        Scenario("ddp", train(3, *ddp, *CHECKPOINT, *records), STEPS * 3, **trained),
        Scenario("ddp, resumed", train(4, *ddp, *RESUME), STEPS * 4, **resumed, sample=("0", "1")),
        Scenario("launched", launched(4), STEPS * 4, **resumed),
        Scenario("compare", compared("shared"), outputs=(*reports, *(f"shared/{name}" for name in SHARED)),
                 next=Scenario("once more", compared("again"), outputs=(*reports, *(f"again/{name}" for name in SHARED)))),
    ]
