"""A real Ceph cluster for a run: one monitor and some OSDs from Debian's packages, all in one folder, up in ten seconds.

Its OSDs keep their data in memory, in two copies. What differs from a cluster in the field: a dead OSD is noticed within six seconds,
a dead client within ten, and there is no manager but in a case that asks for it: RBD does not need one. Clients of `user` have a
ceph.conf that does all that spoils a gateway. Each daemon is ended by its own process id, and dies with the run.
"""

import base64
import concurrent.futures
import contextlib
import json
import os
import signal
import struct
import subprocess
import threading
import time
import uuid

from . import proc
from .report import Failed, expect

ADDRESS, PORT = "127.0.0.1", 26300
POOL = "rbd"

# A daemon dies with the thread that has started it, and cases may run in threads of their own.
STARTER = concurrent.futures.ThreadPoolExecutor(1)
# Held while a cluster of the run is looked up, or started.
LOOKING = threading.Lock()

CONF = """
[global]
fsid = {fsid}
mon_host = [v2:{address}:{port}]
public_addr = {address}
ms_bind_msgr1 = false
ms_bind_port_min = {port_min}
ms_bind_port_max = {port_max}
keyring = {folder}/keyring
run_dir = {folder}/run
admin_socket = {folder}/run/$name.asok
log_file = {folder}/log/$name.log
crash_dir = {folder}/crash
osd_pool_default_size = 2
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 16
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_heartbeat_interval = 1
osd_heartbeat_grace = 6
mon_osd_min_down_reporters = 1
mon_osd_adjust_heartbeat_grace = false
[client]
log_file =
admin_socket =
[mon]
mon_data = {folder}/data/$name
mon_data_avail_crit = -1
mon_data_avail_warn = -1
mon_cluster_log_file = {folder}/log/cluster.log
auth_allow_insecure_global_id_reclaim = false
mgr_initial_modules =
mon_mgr_digest_period = 1
mon_allow_pool_size_one = true
[mgr]
mgr_data = {folder}/data/$name
mgr_stats_period = 1
mgr_tick_period = 1
mgr_disabled_modules = alerts balancer crash devicehealth iostat orchestrator pg_autoscaler progress rbd_support selftest status telemetry volumes
keyring = {folder}/data/$name/keyring
[osd]
osd_data = {folder}/data/$name
keyring = {folder}/data/$name/keyring
osd_objectstore = {store}
osd_client_watch_timeout = 10
bluestore_block_size = 1073741824
memstore_device_bytes = {osd_bytes}
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 2
"""


# Settings with which a client acknowledges what it has not written, leaves what it discards, has the dead write on, sends
# memory that changes, blocks who starts an operation, or waits for ever.
SPOILS = """
[client]
rbd_cache = true
rbd_cache_policy = writeback
rbd_cache_writethrough_until_flush = false
rbd_cache_max_dirty_age = 30
rbd_non_blocking_aio = false
rbd_disable_zero_copy_writes = false
rbd_blocklist_on_break_lock = false
rbd_skip_partial_discard = true
rados_mon_op_timeout = 0
rados_osd_op_timeout = 0
"""


def new_key():
    """A cephx secret: type 1 (AES), the time of its making, 16 random bytes."""
    return base64.b64encode(struct.pack("<hIIh", 1, int(time.time()), 0, 16) + os.urandom(16)).decode()


class Cluster:
    def __init__(self, folder, osds=3, address=ADDRESS, store="memstore"):
        self.folder, self.osds, self.address, self.store = folder, osds, address, store
        self.conf = os.path.join(folder, "ceph.conf")
        self.daemons = {}
        self.suspect = False

    # The daemons
    def launch(self, name):
        """Starts mon.a or osd.N; it dies with this process."""
        kind, ident = name.split(".")
        with open(os.path.join(self.folder, "log", f"{name}.out"), "ab") as log:
            self.daemons[name] = STARTER.submit(
                subprocess.Popen, ["setpriv", "--pdeathsig", "KILL", f"ceph-{kind}", "-c", self.conf, "-i", ident, "-f"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True).result()

    def kill(self, name):
        """Ends a daemon as a power cut would; an OSD's data is gone with it."""
        self.daemons[name].kill()
        self.daemons[name].wait()

    def revive(self, name):
        """Starts a killed daemon again. An OSD in memory is made anew, and the others fill it."""
        if name.startswith("osd."):
            self.make_osd(int(name.split(".")[1]), self.command("osd", "dump"))
        self.launch(name)
        self.wait_up()

    def start(self):
        proc.need("ceph", "ceph-mon", "ceph-osd", "monmaptool", "rbd", "setpriv")
        for name in ("data", "log", "run", "crash"):
            os.makedirs(os.path.join(self.folder, name))
        self.fsid = str(uuid.uuid4())
        with open(self.conf, "w") as file:
            file.write(CONF.format(folder=self.folder, fsid=self.fsid, address=self.address, port=PORT, port_min=PORT + 1,
                                   port_max=PORT + 200, osd_bytes=4 << 30, store=self.store))
        self.keyring("keyring", **{"mon.": {"mon": "allow *"}, "client.admin": {"mon": "allow *", "osd": "allow *", "mgr": "allow *"}})
        monmap = os.path.join(self.folder, "monmap")
        proc.run("monmaptool", "--create", "--fsid", self.fsid, "--addv", "a", f"[v2:{self.address}:{PORT}]", "--enable-all-features", monmap)
        proc.run("ceph-mon", "-c", self.conf, "-i", "a", "--mkfs", "--monmap", monmap, "--keyring", os.path.join(self.folder, "keyring"))
        self.launch("mon.a")
        for number in range(self.osds):
            self.make_osd(number)
            self.launch(f"osd.{number}")
        self.wait_up()
        self.command("osd", "pool", "create", POOL)
        self.command("osd", "pool", "application", "enable", POOL, "rbd")
        self.rbd("pool", "init", POOL)

    def make_osd(self, number, known=None):
        """Makes an OSD's place, or that of a known one anew."""
        home, key = os.path.join(self.folder, "data", f"osd.{number}"), new_key()
        if known:
            ident = next(osd["uuid"] for osd in known["osds"] if osd["osd"] == number)
            subprocess.run(["find", home, "-type", "f", "!", "-name", "keyring", "-delete"], check=True)
        else:
            ident = str(uuid.uuid4())
            self.command("osd", "new", ident, number, "-i", "-", stdin=json.dumps({"cephx_secret": key}))
            os.makedirs(home)
            self.keyring(f"data/osd.{number}/keyring", keys={f"osd.{number}": key}, **{f"osd.{number}": {}})
        proc.run("ceph-osd", "-c", self.conf, "-i", number, "--mkfs", "--osd-uuid", ident)

    def stop(self):
        for process in self.daemons.values():
            if process.poll() is None:
                process.kill()
        for process in self.daemons.values():
            process.wait()

    # The monitor
    def command(self, *words, stdin=None):
        """A command to the monitor; its answer. Waits for the monitor for half a minute."""
        done = subprocess.run(["ceph", "-c", self.conf, "--connect-timeout", "30", *map(str, words), "--format", "json"],
                              input=stdin, stdin=None if stdin else subprocess.DEVNULL, capture_output=True, text=True, timeout=90)
        expect(done.returncode == 0, f"ceph {' '.join(map(str, words))}: {done.stderr}")
        printed = done.stdout.strip()
        # Some say their count behind it.
        return json.JSONDecoder().raw_decode(printed)[0] if printed[:1] in ("{", "[") else printed

    def wait_up(self):
        """Until each OSD whose process runs serves."""
        def all_up():
            up = {osd["osd"] for osd in self.command("osd", "dump")["osds"] if osd["up"]}
            return all(int(name[4:]) in up for name, process in self.daemons.items()
                       if name.startswith("osd.") and process.poll() is None)
        try:
            proc.wait_until(all_up, 60, "the OSDs are up", 0.2)
        except Failed as reason:
            raise Failed(f"{reason}\n{self.last_words()}") from None

    @contextlib.contextmanager
    def manager(self):
        """A manager meanwhile, which tells the monitor how full the pools are."""
        proc.need("ceph-mgr")
        made = self.command("auth", "get-or-create", "mgr.x", "mon", "profile mgr", "osd", "allow *")
        os.makedirs(os.path.join(self.folder, "data", "mgr.x"), exist_ok=True)
        self.keyring("data/mgr.x/keyring", keys={"mgr.x": made[0]["key"]}, **{"mgr.x": {}})
        self.launch("mgr.x")
        try:
            yield
        finally:
            self.kill("mgr.x")
            del self.daemons["mgr.x"]

    def until_down(self, name):
        """Until the monitor has noticed that an OSD is silent."""
        number = int(name[4:])
        down = lambda: any(osd["osd"] == number and not osd["up"] for osd in self.command("osd", "dump")["osds"])
        proc.wait_until(down, 60, f"{name} is down", 0.2)

    def blocklist(self):
        """Addresses that may not reach the OSDs any more."""
        return [entry["addr"] for entry in self.command("osd", "blocklist", "ls")]

    def last_words(self):
        words = []
        for name, process in self.daemons.items():
            with open(os.path.join(self.folder, "log", f"{name}.out"), errors="replace") as file:
                words.append(f"{name}, {'alive' if process.poll() is None else f'ended with {process.returncode}'}: {proc.tail(file.read(), 3)}")
        return "\n".join(words)

    # Clients
    def keyring(self, name, keys=None, **entities):
        """Writes a keyring: of entities with their capabilities, and new keys unless given."""
        path = os.path.join(self.folder, name)
        with open(path, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            for entity, capabilities in entities.items():
                file.write(f"[{entity}]\n\tkey = {(keys or {}).get(entity) or new_key()}\n")
                file.writelines(f'\tcaps {of} = "{what}"\n' for of, what in capabilities.items())
        return path

    def user(self, name):
        """A client with a gateway's rights to the pool and no more; the path of a ceph.conf that knows its key alone, and SPOILS."""
        capabilities = ["mon", "profile rbd", "osd", f"profile rbd pool={POOL}"]
        made = self.command("auth", "get-or-create", f"client.{name}", *capabilities)
        keyring = self.keyring(f"{name}.keyring", keys={f"client.{name}": made[0]["key"]}, **{f"client.{name}": {}})
        path = os.path.join(self.folder, f"{name}.conf")
        with open(path, "w") as file:
            file.write(f"[global]\nmon_host = [v2:{self.address}:{PORT}]\nkeyring = {keyring}\n{SPOILS}")
        return path

    @property
    def env(self):
        """What programs of Ceph, QEMU and Stag find the cluster by."""
        return {"CEPH_CONF": self.conf}

    def rbd(self, *words, **more):
        """A command of rbd. One that fails tells which daemons have ended, and whether the cluster's can be used any longer."""
        try:
            return proc.run("rbd", *words, env=self.env, **more)
        except Failed as reason:
            self.suspect = True
            raise Failed(f"{reason}\n{self.last_words()}") from None

    def works(self):
        """Whether its daemons live, and one that a command failed with answers again."""
        if any(process.poll() is not None for process in self.daemons.values()):
            return False
        if self.suspect:
            self.suspect = proc.run("rbd", "ls", POOL, env=self.env, timeout=20, ok=None).code != 0
        return not self.suspect

    def image(self, name, mib=64, *words):
        """A new image."""
        self.rbd("create", f"{POOL}/{name}", "--size", f"{mib}M", *words)
        return f"{POOL}/{name}"

    def watchers(self, image):
        """Clients that have the image open."""
        return json.loads(self.rbd("status", image, "--format", "json"))["watchers"]


def cluster(lab, address=ADDRESS):
    """The run's cluster at this address: started by the first case that asks, and ended with the run. If it works no longer, the
    case that asks next has a new one, so that no other case fails for it."""
    with LOOKING:
        known = vars(lab).setdefault("clusters", {})
        if address in known and not known[address].works():
            print(f"       a new Ceph cluster in place of one that works no longer:\n{known[address].last_words()}", flush=True)
            known.pop(address).stop()
        if address not in known:
            made = Cluster(lab.new_folder("ceph"), address=address)
            try:
                made.start()
            except BaseException:
                made.stop()
                raise
            lab.ends.callback(made.stop)
            known[address] = made
        return known[address]


@contextlib.contextmanager
def silent(cluster, *names):
    """These daemons do not answer meanwhile, though they live."""
    for name in names:
        proc.freeze(cluster.daemons[name])
    try:
        yield
    finally:
        for name in names:
            cluster.daemons[name].send_signal(signal.SIGCONT)


@contextlib.contextmanager
def full(cluster):
    """OSDs with a thousandth of their room in use count as full meanwhile."""
    def ratios(nearfull, backfillfull, full):
        for name, ratio in (("nearfull", nearfull), ("backfillfull", backfillfull), ("full", full)):
            cluster.command("osd", f"set-{name}-ratio", ratio)
    ratios(0.0008, 0.0009, 0.001)
    try:
        yield
    finally:
        ratios(0.85, 0.9, 0.95)
