#!/usr/bin/env python3
"""Runs the examples and compares what they print with golden/.

    check.py EXAMPLES SOURCES      EXAMPLES: the built programs; SOURCES: their folder in the tree
"""
import difflib
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

from torch_losses import STEPS, write_mnist

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")
WRAPPER_LINES = 17


def run(folder, name, *arguments, cwd=None, **environment):
    result = subprocess.run([os.path.join(folder, name), *arguments], capture_output=True, text=True, timeout=120, cwd=cwd,
                            env={**os.environ, **environment})
    return result.stdout if result.returncode == 0 else f"exit code {result.returncode}\n{result.stderr}"


def difference(expected, got, name):
    return "\n".join(difflib.unified_diff(expected.splitlines(), got.splitlines(), "expected", name, lineterm="", n=1))


def golden(name):
    """What is expected, with this machine's number of CPU devices in place of N."""
    with open(os.path.join(GOLDEN, name + ".txt"), encoding="utf-8") as file:
        return file.read().replace("There are N CPU", f"There are {len(os.sched_getaffinity(0))} CPU")


def check_golden(programs, _, name, *arguments):
    got = run(programs, name, *arguments, CUDA_VISIBLE_DEVICES="")
    return difference(golden("_".join((name, *arguments))), got, name)


def check_eight_devices(programs, sources, name):
    """The tutorial's picture of 8 devices: 30 rows are 7 pieces of 4 and one of 2, and 10 rows need only 5 devices."""
    return check_golden(programs, sources, name, "8")


def check_gpus(programs, _, name):
    """The number of GPUs is the machine's, not the one asked for."""
    module = os.path.join(programs, "../tests/support/fake_cuda/libduet_cuda.so")
    if not os.path.exists(module):
        return ""
    got = run(programs, name, "2", DUET_CUDA_MODULE=module, DUET_SIM_DEVICES="3")
    expected = re.sub(r"There are \d+ CPU devices", "There are 3 GPUs", golden(name))
    return difference(expected, got, name)


def check_toy_regression(programs, _, name):
    """All modes learn the same, also from parameters that went through a file."""
    expected = golden(name)
    with tempfile.TemporaryDirectory() as folder:
        wrong = [difference(expected, run(programs, name, mode, f"{folder}/{mode}"), mode) for mode in ("single", "dp", "ddp")]
    return next(filter(None, wrong), "") or check_wrong_mode(programs, name)


def check_wrong_mode(programs, name):
    said = run(programs, name, "dpp")
    return "" if said == f"exit code 2\n{name}: got 'dpp', expected single, dp or ddp\n" else said


SMALL = ("--data", "synthetic", "--train-images", "256", "--test-images", "20")
SHOWN = ("Rank", "Total", "epoch", "resumed", "duet: ")


def commands_of(page):
    """(words) of each command in the page's tables"""
    return [command.split() for row in page.splitlines() if row.endswith("| command |")
            for command in re.findall(r"`(duet [^`]+)`", row)]


def said_by(programs, words, folder):
    """Lines of a command on few images that the tutorials print, with # in place of what varies."""
    words = [word.replace("build-release/examples", programs) for word in words]
    small = {"train": SMALL, "compare": (*SMALL, "--time-budget", "0")}.get(words[1], ())
    said = run(os.path.join(programs, "../cli"), *words, *small, cwd=folder)
    lines = [line for line in said.splitlines() if line.startswith((*SHOWN, "exit"))]
    return [re.sub(r"[\d,]+\.\d+(e-\d+)?|[\d,]+(?= samples)", "#", line) for line in lines] or said.splitlines()


def check_tutorials(programs, sources, name):
    """Every line of the page's tables stands in the program that it names, and every command prints what the tutorial does."""
    root = os.path.join(sources, "..")
    with open(os.path.join(root, "docs/reference/pytorch_to_duet.md"), encoding="utf-8") as file:
        page = file.read()
    wrong, run_programs = [], {example for _, example in CHECKS} | {"tutorials"}
    rows = re.findall(r"^\| (.*) \| (.*) \| `([\w/.]+)` \|$", page, re.M)
    for _, cell, path in rows:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = " ".join(file.read().split())
        wrong += [f"{path} has no {piece}" for piece in re.findall(r"`([^`]+)`", cell) if " ".join(piece.split()) not in text]
        if path.startswith("examples/") and os.path.basename(path)[:-4] not in run_programs:
            wrong.append(f"{path} is not run")
    with tempfile.TemporaryDirectory() as folder:
        said = [line for words in commands_of(page) for line in ("$ " + " ".join(words), *said_by(programs, words, folder))]
    flags = run(programs, "imagenet", "--help")
    theirs = re.findall(r"`(-[\w-]+)", page.split("## The ImageNet example")[1].split("| main.py |")[1])
    wrong += [f"imagenet has no {flag}" for flag in theirs if not re.search(rf"(?<![\w-]){flag}(?![\w-])", flags)]
    wrong += [] if len(rows) > 60 and len(theirs) > 15 else [f"only {len(rows)} lines, {len(theirs)} flags"]
    return "\n".join(wrong) or difference(golden(name), "\n".join(said), name)


def shape(line):
    """The line with # in place of numbers and hashes, and no more than one blank between words."""
    return " ".join(re.sub(r"\b[0-9a-f]{16}[0-9a-f.]*|\d[\d,.]*(e-\d+)?", "#", line).split())


LESSON = ("lesson", "lesson_dp_and_ddp", "lesson_ring", "lesson_speed")


def lesson_step(programs, title, step, folder):
    """What is wrong with a step: its form, its command, or the lines that it shows."""
    commands, shown = (re.findall(rf"^```{kind}\n(.*?)^```", step, re.M | re.S) for kind in ("sh", "text"))
    if len(commands) != 1 or len(shown) != 1 or "![" not in step or not re.search(r"<details>.*^1\. .*^2\. .*</details>", step, re.M | re.S):
        return f"{title}: expected a command, its output, a picture and two answers"
    command = re.sub(r"duet train [^&]*", lambda found: f"{found[0].strip()} {' '.join(SMALL)} ", commands[0].strip())
    command = re.sub(r"duet compare .*", lambda found: f"{found[0]} {' '.join(SMALL)} --time-budget 0", command)
    path = os.pathsep.join((programs, os.path.join(programs, "../cli"), os.environ["PATH"]))
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, cwd=folder,
                            env={**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": ""})
    if result.returncode != 0:
        return f"{command}: exit code {result.returncode}\n{result.stderr}"
    # A comparison without rounds has other columns, and on another machine other sentences: its rows are compared by name.
    measured = command.startswith(("duet compare", "duet predict"))
    row = re.compile(r"^ *((?:single|averaging|dp|ddp) +\d?)(?= )")
    form = (lambda line: " ".join(found[1].split()) if (found := row.match(line)) else None) if measured else shape
    said = [form(line) for line in result.stdout.splitlines()]
    lines = [line for line in shown[0].splitlines() if line != "..." and form(line)]
    wrong = [line for line in lines if form(line) not in said]
    hashes = set(re.findall(r"[0-9a-f]{64}", result.stdout))
    wrong += [] if lines and len(hashes) <= 1 else [f"{len(lines)} lines, hashes {hashes}"]
    return "\n".join([f"{title}: {command} does not print", *wrong]) if wrong else ""


def check_lesson(programs, sources, _):
    """Every command of the lesson ends well, one after the other, and prints lines like those that the page shows."""
    root = os.path.join(sources, "..")
    steps = []
    for page in LESSON:
        with open(os.path.join(root, f"docs/tutorial/{page}.md"), encoding="utf-8") as file:
            steps += re.findall(r"^## (\d\..*?)\n(.*?)(?=^## |\Z)", file.read(), re.M | re.S)
    wrong = [] if [title[0] for title, _ in steps] == list("1234567") else [f"steps {[title for title, _ in steps]}"]
    with tempfile.TemporaryDirectory() as folder:
        for title, step in steps:
            if "duet predict" in step:  # short runs fit no model
                os.makedirs(os.path.join(folder, "out"), exist_ok=True)
                shutil.copy(os.path.join(root, "tests/fuzz/results.json"), os.path.join(folder, "out/results.json"))
            wrong.append(lesson_step(programs, title, step, folder))
    return "\n".join(filter(None, wrong))


def check_pictures(_, sources, name):
    """The pictures are as the script draws them, and all that are drawn by it."""
    docs = os.path.join(sources, "../docs/pictures")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, os.path.join(sources, "../tools", name + ".py"), folder], check=True, timeout=60)
        texts = {}
        for place in (docs, folder):
            for path in sorted(glob.glob(os.path.join(place, "*.svg"))):
                with open(path, encoding="utf-8") as file:
                    texts.setdefault(os.path.basename(path), []).append(file.read())
    alone = [picture for picture, found in texts.items() if len(found) != 2]
    return ", ".join(alone) or next(filter(None, (difference(*both, picture) for picture, both in texts.items())), "" if texts else "none")


def check_training(programs, _, name):
    """The losses and the fingerprint of the parameters are those of one device."""
    data = ("synthetic", "600")
    single = run(programs, "train_single", *data)
    if single.count("test loss") != 2 or "parameters: sha256 " not in single:
        return "train_single printed:\n" + single
    return difference(single, run(programs, name, *data), name)


def check_wrapper_lines(_, sources, name):
    """Behind the opening comment only the wrapper's lines differ."""
    texts = []
    for program in ("train_single", name):
        with open(os.path.join(sources, program + ".cpp"), encoding="utf-8") as file:
            lines = file.read().splitlines()
        texts.append([line for line in lines if not line.startswith("//")])
    lines = [line for line in difflib.unified_diff(*texts, lineterm="", n=0) if line[:3] not in ("---", "+++")]
    changed = [line for line in lines if line[0] in "+-"]
    text = "\n".join(changed)
    return text if len(changed) > WRAPPER_LINES or not any("net(" in line for line in changed) else ""


def check_own_network(programs, _, name):
    """All modes and numbers of devices print the same; so does a training that went on twice, each time in another mode."""
    alone = run(programs, name, "single", "1", "3")
    if alone.count("loss of unseen") != 3 or "parameters: sha256 " not in alone:
        return alone
    for mode, devices in (("dp", "2"), ("dp", "4"), ("ddp", "2"), ("ddp", "4")):
        wrong = difference(alone, run(programs, name, mode, devices, "3"), f"{mode} {devices}")
        if wrong:
            return wrong
    with tempfile.TemporaryDirectory() as folder:
        parts = [run(programs, name, mode, devices, epochs, folder)
                 for mode, devices, epochs in (("dp", "2", "1"), ("ddp", "4", "2"), ("single", "1", "3"))]
        # From the twentieth of 24 steps, as if the program had been killed behind it.
        kept = sorted(os.listdir(folder))
        os.remove(os.path.join(folder, kept[-1]))
        killed = run(programs, name, "dp", "8", "3", folder)
    lines = [line for part in parts for line in part.splitlines() if line.startswith("epoch")]
    return (difference(alone, "\n".join(lines + parts[-1].splitlines()[-1:]), "resumed")
            or difference("\n".join(alone.splitlines()[-2:]), killed, "killed")
            or (f"checkpoints of {kept}" if [re.sub(r"\D", "", file) for file in kept[-2:]] != ["00000020", "00000024"] else ""))


def losses(text):
    return [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)$", text, re.M)]


def check_learning(programs, sources, name):
    """The loss falls, and all modes end with the same bits; the printed losses of processes are those of rank 0's rows."""
    *data, steps = {"autoencoder": ("synthetic", "40"), "char_gpt": (f"{sources}/../LICENSE", "80"), "adding_problem": ("80",)}[name]
    alone = run(programs, name, "single", "1", *data, steps)
    fall = losses(alone)
    if len(fall) != 20 or fall[-1] > 0.6 * fall[0] or "parameters: sha256 " not in alone:
        return alone
    wrong = [difference(alone, run(programs, name, "dp", devices, *data, steps), f"dp {devices}") for devices in ("2", "3")]
    end = alone[alone.rindex("\nstep"):].split("\n", 2)[2]
    for devices in ("2", "3"):
        said = run(programs, name, "ddp", devices, *data, steps)
        wrong.append("" if said.endswith(end) and len(losses(said)) == 20 else said)
    said = run(programs, name, "dpp", "2", *data, "1")
    wrong.append("" if said == f"exit code 2\n{name}: got 'dpp', expected single, dp or ddp\n" else said)
    return "\n".join(filter(None, wrong))


def check_gan(programs, _, name):
    """The score improves until the training stops by itself, alike alone and in several processes."""
    alone = run(programs, name, "single")
    scores = [float(score) for score in re.findall(r"epoch \d+: score ([\d.]+)", alone)]
    if not 5 < len(scores) < 100 or min(scores) > 0.1 * scores[0] or min(scores) in scores[-2:] or "average: sha256 " not in alone:
        return alone
    wrong = [difference(alone, run(programs, name, "ddp", devices), f"ddp {devices}") for devices in ("2", "3")]
    said = run(programs, name, "dp")
    return "".join(wrong) or ("" if said == f"exit code 2\n{name}: got 'dp', expected single or ddp\n" else said)


def check_torch_losses(programs, sources, name):
    """The first losses are those that PyTorch 2.15 has with the same weights, order and samples."""
    expected = losses(golden(name + "_torch"))
    with tempfile.TemporaryDirectory() as folder:
        write_mnist(folder)
        data = {"autoencoder": folder, "char_gpt": f"{sources}/../LICENSE"}[name]
        said = run(programs, name, "single", "1", data, str(STEPS))
    got = losses(said)
    good = len(expected) == len(got) == STEPS and all(abs(one - other) < 1e-5 for one, other in zip(expected, got))
    return "" if good else f"expected {expected}\n{said}"


def check_fashion_mnist(programs, _, name):
    """All modes and numbers of devices end with the same bits; so does a training that goes on from the middle of an epoch."""
    with tempfile.TemporaryDirectory() as folder:
        write_mnist(folder)

        def train(mode, devices, epochs, *checkpoints):
            said = run(programs, name, mode, devices, epochs, "4", "300", *checkpoints, DUET_DATA=folder)
            lines = [line for line in said.splitlines() if line.startswith(("epoch", "parameters"))]
            # The loss of processes is that of rank 0's rows.
            return [re.sub(r": .*, (?=test loss)", ": ", line) for line in lines] or said.splitlines()

        alone = train("single", "1", "2")
        if len(alone) != 3 or "test loss" not in alone[1]:
            return "\n".join(alone)
        for mode, devices in (("dp", "2"), ("dp", "3"), ("ddp", "2"), ("ddp", "3")):
            got = train(mode, devices, "2")
            if got != alone:
                return difference("\n".join(alone), "\n".join(got), f"{mode} {devices}")
        # The checkpoint of step 50 of 54 lies in epoch 17, as if the program had been killed behind it.
        whole, rest = train("ddp", "2", "18", folder + "/saved"), train("single", "1", "18", folder + "/saved")
        return difference("\n".join(whole[-3:]), "\n".join(rest), "resumed")


def check_image_folder(programs, _, name):
    """A folder of JPEGs, a class in each of its folders."""
    with tempfile.TemporaryDirectory() as folder:
        said = run(programs, name, folder, "synthetic:classes=3,size=16,train=7,test=4")
        if "built without" in said:
            return ""
        run(programs, name, folder + "/digits", "synthetic", "5", "3")
        again = run(programs, name, folder, "synthetic:classes=3,size=16,train=2,test=2")
        counted = run(programs, name, folder + "/counted", "synthetic:classes=3,size=16", "7", "4")
        if "exit code 1\n" not in again or "is not empty" not in again or "exit code 2\n" not in counted:
            return again + counted
        found = {part: sorted(glob.glob(f"{folder}/{part}/*/*.jpg")) for part in ("train", "val", "digits/train", "digits/val")}
        counts = {part: len(files) for part, files in found.items()}
        if counts != {"train": 7, "val": 4, "digits/train": 5, "digits/val": 3}:
            return f"{said}\n{counts}"
        with open(f"{folder}/train/002/5.jpg", "rb") as file:
            content = file.read()
        return "" if content.startswith(b"\xff\xd8\xff") and content.endswith(b"\xff\xd9") else "no JPEG"


def last_lines(text):
    """Accuracies of whole epochs and the fingerprint: what no mode changes. All of a failure."""
    return "\n".join(line for line in text.splitlines() if line.startswith((" *", "param", "exit"))) if "*" in text else text


IMAGENET = ("-j", "1", "-p", "2", "--seed", "1", "--sync-bn", "-b", "16")
SMALL_RESNET = ("-a", "resnet18", "--stem", "cifar", "--width", "4", "--image-size", "16", *IMAGENET)


def ranks_by_hand(programs, name, folder, *arguments):
    """What rank 0 of two processes prints that are started one by one."""
    meeting = ("--world-size", "2", "--dist-url", f"file://{folder}/meeting")
    command = [os.path.join(programs, name), *arguments, *meeting, "--checkpoint", f"{folder}/by_hand"]
    with subprocess.Popen([*command, "--rank", "1"], stdout=subprocess.DEVNULL) as other:
        result = subprocess.run([*command, "--rank", "0"], capture_output=True, text=True, timeout=120)
        return result.stdout if other.wait(120) == result.returncode == 0 else str(result)


def check_imagenet(programs, _, name):
    """Alone, DataParallel and processes: the same accuracies and bits, also where one goes on from another's checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        images = "synthetic:classes=4,size=24,train=56,test=21"
        if "built without" not in run(programs, "make_image_folder", folder + "/images", images):
            images = folder + "/images"
        ranks = ("--multiprocessing-distributed", "--devices")

        def train(checkpoint, *arguments):
            return run(programs, name, images, *SMALL_RESNET, "--checkpoint", f"{folder}/{checkpoint}", *arguments)

        alone = train("alone", "--epochs", "2", "--gpu", "0")
        seconds, loss, percent = r"[ \d]\d\.\d{3}", r"\d\.\d{4}e[+-]\d\d", r"[ \d]{2}\d\.\d\d"  # main.py's formats
        line = (rf"^Epoch: \[1\]\[3/4\]\tTime {seconds} \({seconds}\)\tData {seconds} \({seconds}\)\tLoss {loss} \({loss}\)"
                rf"\tAcc@1 {percent} \({percent}\)\tAcc@5 100.00 \(100.00\)$")
        if len(re.findall(r"^ \* Acc@1 \d+\.\d{3} Acc@5 100\.000$", alone, re.M)) != 2 or not re.search(line, alone, re.M):
            return alone
        alone = last_lines(alone)
        first, second, _ = alone.splitlines()
        texts = {"dp": train("dp", "--epochs", "2", "--devices", "2"), "ddp": train("ddp", "--epochs", "2", *ranks, "4"),
                 "by hand": ranks_by_hand(programs, name, folder, images, *SMALL_RESNET, "--epochs", "2", "-b", "8")}
        parts = [train("parts", "--epochs", "1", "--devices", "2"),
                 train("parts", "--epochs", "2", *ranks, "2", "--resume", f"{folder}/parts")]
        texts["resumed"] = "\n".join([first, *parts[1].splitlines()])
        wrong = [difference(alone, last_lines(text), mode) for mode, text in texts.items()]
        wrong += [difference(second, last_lines(train("", "-e", "--resume", f"{folder}/ddp", *devices)), "evaluated")
                  for devices in (("--devices", "2"), (*ranks, "2"))]
        other = [argument for argument in SMALL_RESNET if argument != "--sync-bn"]
        other = run(programs, name, images, *other, "--epochs", "3", "--resume", f"{folder}/parts", "--checkpoint", folder)
        wrong += [] if "is of a run with sync_bn on, this run has off" in other else [other]
        partial = train("partial", "--epochs", "0", "--classes", "7", "--partial", "--pretrained",
                        f"{folder}/dp/model_best.safetensors")
        wrong += [] if "=> not taken from" in partial and "'fc.weight'" in partial else [partial]
        return "\n".join(text for text in wrong if text)


def check_imagenet_features(programs, _, name):
    """DataParallel around vgg's features, whose result has several pixels of 32 channels, has the bits of one device."""
    with tempfile.TemporaryDirectory() as folder:
        texts = [run(programs, name, "synthetic:classes=4,size=64,train=24,test=8", "-a", "vgg11_bn", "--width", "4", *IMAGENET,
                     "--epochs", "1", "--devices", devices, "--checkpoint", folder + "/" + devices) for devices in ("1", "2")]
        return texts[0] if "parameters" not in texts[0] else difference(*map(last_lines, texts), "2 devices")


def check_imagenet_errors(programs, _, name):
    """A wrong command line is one line and exit code 2, missing images are one line and exit code 1."""
    wrong = {("-a", "nonsense"): 2, ("-b", "0"): 2, ("--world-size", "2"): 2, ("--classes", "2", "synthetic:size=16"): 2,
             ("--world-size", "2", "--multiprocessing-distributed"): 2, ("/nonexistent",): 1,
             ("synthetic:size=16", "--resume", "/nonexistent"): 1}
    for arguments, code in wrong.items():
        result = subprocess.run([os.path.join(programs, name), *arguments], capture_output=True, text=True, timeout=120)
        if result.returncode != code or len(result.stderr.splitlines()) != 1:
            return str(result)
    text = run(programs, name, "--help")
    return "" if all(flag in text for flag in ("--dist-backend", "--no-accel", "--wd,--weight-decay")) else text


def check_help(programs, _, name):
    """--help prints the usage."""
    result = subprocess.run([os.path.join(programs, name), "--help"], capture_output=True, text=True, timeout=120)
    good = result.returncode == 0 and result.stdout.startswith(f"usage: {name} ") and not result.stderr
    return "" if good else str(result)


def check_wrong_arguments(programs, _, name):
    """A wrong command line is one line on stderr and exit code 2."""
    wrong = [["--nonsense"], ["a", "b", "c", "d", "e"]]
    wrong += [["synthetic", number] for number in ("many", "-1", "10x", "0")] if name.startswith("train_") else []
    wrong += [[number] for number in ("many", "0", "65", "1e9")] if name == "random_dataset_dp" else []
    for arguments in wrong:
        result = subprocess.run([os.path.join(programs, name), *arguments], capture_output=True, text=True, timeout=120)
        lines = result.stderr.splitlines()
        if result.returncode != 2 or len(lines) != 1 or not lines[0].startswith(name + ": ") or result.stdout:
            return str(result)
    return ""


CHECKS = [(check_golden, name) for name in ("partition", "plain_loop", "random_dataset_dp", "a_simple_net", "collectives", "comm_hook",
                                            "ring_all_reduce", "two_processes", "own_operator")]
CHECKS += [(check_eight_devices, "random_dataset_dp"), (check_gpus, "random_dataset_dp")]
CHECKS += [(check_toy_regression, "toy_regression"), (check_tutorials, "tutorials"), (check_lesson, "lesson"),
           (check_pictures, "draw_pictures")]
CHECKS += [(check, name) for name in ("partition", "random_dataset_dp", "a_simple_net", "collectives", "comm_hook",
                                      "ring_all_reduce", "two_processes", "train_single", "train_dp", "train_ddp", "own_network",
                                      "make_image_folder", "toy_regression", "autoencoder", "gan", "char_gpt", "adding_problem", "fashion_mnist")
           for check in (check_help, check_wrong_arguments)]
CHECKS += [(check, name) for name in ("train_dp", "train_ddp") for check in (check_training, check_wrapper_lines)]

CHECKS += [(check_own_network, "own_network"), (check_image_folder, "make_image_folder")]
CHECKS += [(check, name) for name in ("autoencoder", "char_gpt") for check in (check_learning, check_torch_losses)]
CHECKS += [(check_learning, "adding_problem"), (check_gan, "gan"), (check_fashion_mnist, "fashion_mnist")]
CHECKS += [(check, "imagenet") for check in (check_imagenet, check_imagenet_features, check_imagenet_errors)]


def main(programs, sources):
    passed = failed = 0
    for check, name in CHECKS:
        wrong = check(os.path.abspath(programs), sources, name)
        passed += not wrong
        failed += bool(wrong)
        if wrong:
            print(f"{check.__name__} {name}:\n{wrong}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
