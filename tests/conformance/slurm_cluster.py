"""A Slurm of one node, for a test: munged, slurmctld and slurmd of this machine under a configuration of their own."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
PLACES = "/usr/sbin:/usr/local/sbin:/sbin"  # of daemons, which are on few people's path

CONF = """\
ClusterName=turnwise
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
# needs neither cgroups nor rights of its own
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# the test may ask for more cores than there are
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2
ReturnToService=2
JobRequeue=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Programs of Slurm that this machine lacks."""
    return [name for name in PROGRAMS if not _found(name)]


@dataclass(slots=True)
class Cluster:
    """A running cluster; ``environment`` is what its programs need."""

    folder: Path
    environment: dict[str, str]

    @classmethod
    def start(cls, folder: Path) -> Cluster:
        """Raises RuntimeError, with the daemons' logs, if it does not come up within a minute."""
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir(parents=True, mode=0o700)
        host, user = socket.gethostname().partition(".")[0], getpass.getuser()
        (folder / "slurm.conf").write_text(CONF.format(host=host, user=user, folder=folder, ports=_free_ports(2)))
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        cluster = cls(folder, {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")})
        places = {name: f"{folder}/munge/{name}" for name in ("socket", "pid-file", "log-file", "seed-file")}
        try:
            cluster.run("munged", "--force", f"--key-file={key}", *(f"--{n}={path}" for n, path in places.items()))
            cluster.run("slurmctld")
            cluster.run("slurmd")
            wait(lambda: "idle" in cluster.run("sinfo", "--noheader", "--format=%t"), 60)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def run(self, program: str, *arguments: str) -> str:
        """What a program of Slurm prints; RuntimeError with all logs where it fails."""
        command = [str(_found(program)), *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.rglob("*log*"))
            raise RuntimeError(f"{program}: {done.stderr}{done.stdout}\n{logs}")
        return done.stdout

    def stop(self) -> None:
        """End the daemons that this cluster has started, jobs first."""
        subprocess.run([str(_found("scancel")), f"--user={getpass.getuser()}"], env=self.environment, check=False)
        for name in ("slurmd.pid", "slurmctld.pid", "munge/pid-file"):
            path = self.folder / name
            if path.exists() and (number := path.read_text().strip()):
                try:
                    os.kill(int(number), signal.SIGTERM)
                    wait(lambda pid=int(number): not Path(f"/proc/{pid}").exists(), 20)  # type: ignore[misc]
                except (ProcessLookupError, TimeoutError):
                    continue


def wait(reached: Callable[[], object], seconds: float) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not reached within {seconds:g} s")
        time.sleep(0.1)


def _found(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=PLACES)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
