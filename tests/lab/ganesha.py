"""NFS-Ganesha on a directory, in a mount namespace of its own: a foreign server of NFS 3, 4.1 and 4.2, with MOUNT at another port."""

import contextlib
import os
import socket
import subprocess

from . import proc
from .report import Failed

# The id mapper refuses to start without a domain. Both programs end with the shell.
SCRIPT = r"""
mount -t tmpfs t /run && mkdir -p /run/rpcbind /run/ganesha "$WORK/recovery" && cp -a /etc "$WORK/etc" || exit
printf '[General]\nDomain = lab.test\n[Translation]\nMethod = nsswitch\n' >"$WORK/etc/idmapd.conf" && mount --bind "$WORK/etc" /etc || exit
rpcbind -f -w & children=$!
sleep 0.3
ganesha.nfsd -F -f "$WORK/ganesha.conf" -L "$WORK/log" -p /run/ganesha/pid & children="$children $!"
trap 'kill $children; wait; exit 0' TERM
wait
"""

CONFIG = """
NFS_CORE_PARAM {{ Protocols = 3,4; NFS_Port = 2049; MNT_Port = 20048; Enable_NLM = false; Enable_RQUOTA = false; fsid_device = true; }}
NFSv4 {{ RecoveryRoot = {work}/recovery; Lease_Lifetime = 10; Grace_Period = 10; Minor_Versions = 1,2; Allow_Numeric_Owners = true; Only_Numeric_Owners = true; }}
EXPORT {{ Export_Id = 1; Path = {folder}; Pseudo = /export; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Transports = TCP; FSAL {{ Name = VFS; }} }}
LOG {{ Default_Log_Level = EVENT; }}
"""


def answers():
    """Nobody else listens for MOUNT at that port."""
    try:
        for port in (20048, 2049):
            socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


@contextlib.contextmanager
def ganesha(lab, folder):
    """It serves `folder`: as /export to version 4, under its own path to version 3."""
    proc.need("ganesha.nfsd", "rpcbind", "unshare")
    work = lab.new_folder("ganesha")
    with open(os.path.join(work, "ganesha.conf"), "w") as file:
        file.write(CONFIG.format(work=work, folder=folder))
    process = subprocess.Popen(["unshare", "-m", "--propagation", "private", "bash", "-c", SCRIPT],
                               env={**os.environ, "WORK": work}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        try:
            proc.wait_until(lambda: answers() or process.poll() is not None, 30, "Ganesha serves")
            if process.poll() is not None:
                raise Failed("Ganesha has ended")
            yield
        except BaseException:
            log = os.path.join(work, "log")
            if os.path.exists(log):
                with open(log, errors="replace") as file:
                    print(proc.tail(file.read()), flush=True)
            raise
    finally:
        proc.end(process)
