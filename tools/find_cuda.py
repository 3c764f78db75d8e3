#!/usr/bin/env python3
"""Finds a CUDA toolkit with cuBLAS, cuDNN and NCCL, and prints what a build needs of it.

    find_cuda.py [FOLDER...]   FOLDER: a toolkit's root, or a Python environment with NVIDIA's wheels; nothing else is
                               looked at then
    find_cuda.py --driver      exit status 0 when this machine has an NVIDIA driver

Without a folder the first complete one of these is taken: $DUET_CUDA_ENV, $CUDA_HOME, $CUDA_PATH, the nvcc on PATH,
/usr/local/cuda, the environment that tools/cuda_from_wheels.sh makes, and the wheels of the python3 on PATH. A toolkit
that lacks cuDNN or NCCL takes them from the wheels of another place. Prints lines of a key, a tab and a value: root,
nvcc, version, include (several), library.NAME (full name of the file), folder (of the libraries; several). Where nothing
is found, the standard error says what each place lacks, and the exit status is 1.
"""
import glob
import os
import re
import shutil
import subprocess
import sys

NEEDED_MAJOR = 13
HEADERS = ("cuda_runtime.h", "crt/host_defines.h", "nv/target", "cublas_v2.h", "cudnn.h", "nccl.h")
LIBRARIES = ("cudart_static", "cublas", "cublasLt", "cudnn", "nccl")
PACKAGED_APART = ("cudnn.h", "nccl.h")  # may lie where distributions' packages put them
SYSTEM_INCLUDES = ("/usr/include", "/usr/local/include")
SYSTEM_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")


def default_environment():
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "duet", "cuda")


def wheel_folders(folder):
    """The folders "nvidia" of a Python environment, or of a site-packages folder."""
    return sorted(glob.glob(os.path.join(folder, "lib", "python3*", "site-packages", "nvidia"))) + [
        os.path.join(folder, "nvidia")
    ]


def roots(folder):
    """A toolkit's root as it is; of an environment, the root inside its wheels."""
    if os.path.isdir(os.path.join(folder, "bin")) and os.path.exists(os.path.join(folder, "bin", "nvcc")):
        return [folder]
    found = []
    for wheels in wheel_folders(folder):
        found += [root for root in sorted(glob.glob(os.path.join(wheels, "cu[0-9]*"))) if os.path.isdir(root)]
    return found or [folder]


def places():
    """(where it was said, folder) in the order of search."""
    for name in ("DUET_CUDA_ENV", "CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield "$" + name, os.environ[name]
    nvcc = shutil.which("nvcc")
    if nvcc:
        # /usr/local/cuda/bin/nvcc may be a link; a distribution's /usr/bin/nvcc has its toolkit elsewhere.
        yield "nvcc on PATH", os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    yield "the usual place", "/usr/local/cuda"
    yield "tools/cuda_from_wheels.sh", default_environment()
    python = shutil.which("python3")
    if python:
        run = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                             capture_output=True, text=True, check=False)
        if run.returncode == 0 and os.path.isdir(os.path.join(run.stdout.strip(), "nvidia")):
            yield "python3 on PATH", run.stdout.strip()


def suits(folder, name):
    """Whether the wheel of `name` in a folder "nvidia" is for the CUDA that is needed; wheels say it in their names."""
    wheels = glob.glob(os.path.join(os.path.dirname(folder), f"nvidia_{name}_cu*.dist-info"))
    return not wheels or any(os.path.basename(wheel).startswith(f"nvidia_{name}_cu{NEEDED_MAJOR}-") for wheel in wheels)


def first_existing(folders):
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


class Toolkit:
    """What lies at `root`, together with the wheels next to it, what the system has of cuDNN and NCCL, and the cuDNN and
    NCCL of `wheels`: other places' folders "nvidia"."""

    def __init__(self, root, wheels=()):
        self.root = os.path.abspath(root)
        homes = [self.root] + [os.path.join(os.path.dirname(self.root), name) for name in ("cudnn", "nccl", "cublas")]
        homes += [os.path.join(folder, name) for folder in wheels for name in ("cudnn", "nccl") if suits(folder, name)]
        self.nvcc = os.path.join(self.root, "bin", "nvcc")
        self.includes = first_existing(
            [os.path.join(home, "include") for home in homes]
            + [os.path.join(self.root, "include", "cccl")]
            + glob.glob(os.path.join(self.root, "targets", "*-linux", "include"))
        )
        self.folders = first_existing(
            [os.path.join(home, name) for home in homes for name in ("lib64", "lib")]
            + glob.glob(os.path.join(self.root, "targets", "*-linux", "lib"))
        )
        self.version = ""
        self.libraries = {}

    def missing(self):
        """What keeps a build from using this toolkit; empty when it can."""
        if not os.access(self.nvcc, os.X_OK):
            return f"no {self.nvcc}"
        run = subprocess.run([self.nvcc, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"release (\d+)\.(\d+)", run.stdout)
        if run.returncode != 0 or not version:
            return f"{self.nvcc} --version fails: {(run.stderr or run.stdout).strip()[:200]}"
        self.version = ".".join(version.groups())
        if int(version.group(1)) < NEEDED_MAJOR:
            return f"{self.nvcc} is of CUDA {self.version}, {NEEDED_MAJOR} or newer is needed"
        for header in HEADERS:
            system = SYSTEM_INCLUDES if header in PACKAGED_APART else ()
            if not any(os.path.exists(os.path.join(d, header)) for d in (*self.includes, *system)):
                return f"no {header} in {self.root}"
        for name in LIBRARIES:
            file = self.library(name)
            if not file:
                return f"no lib{name} in {self.root}"
            self.libraries[name] = file
        return ""

    def library(self, name):
        if name.endswith("_static"):
            patterns = [f"lib{name}.a"]
        else:  # wheels have no name without a version
            patterns = [f"lib{name}.so", f"lib{name}.so.[0-9]*"]
        for folder in (*self.folders, *SYSTEM_LIBRARIES):
            for pattern in patterns:
                files = sorted(glob.glob(os.path.join(folder, pattern)), key=len)
                if files:
                    return files[0]
        return ""

    def lines(self):
        yield f"root\t{self.root}"
        yield f"nvcc\t{self.nvcc}"
        yield f"version\t{self.version}"
        for include in self.includes:
            yield f"include\t{include}"
        for name, file in self.libraries.items():
            yield f"library.{name}\t{file}"
        used = [os.path.dirname(file) for file in self.libraries.values()]
        for folder in dict.fromkeys(used):
            if folder not in SYSTEM_LIBRARIES:
                yield f"folder\t{folder}"


def find(folders):
    """(toolkit or None, why not)"""
    given = [("the given folder", folder) for folder in folders] or list(places())
    wheels = first_existing(name for _, place in given for name in wheel_folders(place))
    roots_of = {}
    for name, place in given:
        for root in roots(place):
            roots_of.setdefault(os.path.realpath(root), (name, root))
    candidates = list(roots_of.values())
    for others in ((), wheels):  # places are mixed only where none is complete
        reasons = []
        for name, root in candidates:
            toolkit = Toolkit(root, others)
            why = toolkit.missing()
            if not why:
                return toolkit, ""
            reasons.append(f"{name}: {why}")
    return None, "; ".join(reasons)


def has_driver():
    if os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidiactl"):
        return True
    smi = shutil.which("nvidia-smi")
    return bool(smi) and subprocess.run([smi, "-L"], capture_output=True, check=False).returncode == 0


def main(arguments):
    if arguments == ["--driver"]:
        return 0 if has_driver() else 1
    if any(argument.startswith("-") for argument in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    toolkit, why = find(arguments)
    if not toolkit:
        print(why, file=sys.stderr)
        return 1
    print("\n".join(toolkit.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
