"""A Slurm cluster of this one machine, with its own key, ports and folder, for the time of a test."""
import contextlib
import os
import shutil
import socket
import subprocess
import time

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIGURATION = """\
ClusterName=duet
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP OverSubscribe=YES
"""


def program(name):
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def why_not():
    """Why no cluster can be started here; empty when one can."""
    if os.geteuid() != 0:
        return "only root may start one here"
    absent = [name for name in DAEMONS if program(name) is None]
    return f"{', '.join(absent)} not installed" if absent else ""


def free_ports(count):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]


def why_silent(srun):
    """What srun says when no job runs within a quarter of a minute; empty when one runs."""
    try:
        ran = subprocess.run([srun, "--immediate=12", "true"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "srun gave no answer in a minute"
    return "" if ran.returncode == 0 else ran.stdout.strip() or f"srun's exit code is {ran.returncode}"


def jobs():
    return subprocess.run([program("squeue"), "--noheader"], stdout=subprocess.PIPE, text=True, timeout=60,
                          check=False).stdout.strip()


def wait_until(condition, seconds):
    """Whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@contextlib.contextmanager
def cluster(folder, srun):
    """Starts the daemons, sets SLURM_CONF, yields an empty text or why no job ran; ends the daemons."""
    host = socket.gethostname().split(".")[0]
    for name in ("state", "spool"):
        os.mkdir(os.path.join(folder, name))
    key = os.path.join(folder, "munge.key")
    with open(key, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(os.urandom(1024))
    configuration = os.path.join(folder, "slurm.conf")
    with open(configuration, "w", encoding="utf-8") as file:
        file.write(CONFIGURATION.format(host=host, folder=folder, ports=free_ports(2), cores=os.cpu_count()))
    os.environ["SLURM_CONF"] = configuration
    commands = ([program("munged"), "--force", "--foreground", f"--key-file={key}", f"--socket={folder}/munge.socket",
                 f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"],
                [program("slurmctld"), "-D"], [program("slurmd"), "-D"])
    daemons = []
    try:
        with open(os.path.join(folder, "daemons.log"), "w", encoding="utf-8") as log:
            for command in commands:
                daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        said = [""]
        started = wait_until(lambda: said.append(why_silent(srun)) or not said[-1], 60)
        yield "" if started else said[-1]
        wait_until(lambda: not jobs(), 20)  # a step outlives daemons that end before it
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        del os.environ["SLURM_CONF"]
