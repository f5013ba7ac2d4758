"""Our own initiator, by iser://, against Linux's own target (LIO's isert) over siw, in the lab's guest.

The guest serves; its script asks this side to run the client, and breaks things under it meanwhile.
"""

import json
import os
import threading
import time

from lab import proc, uml
from lab.report import Skip, expect
from lab.target import Stag

URL = f"iser://{uml.GUEST}:3260/iqn.2026-01.example.lab:lio/0"
MIB = 1 << 20


def stag(*words, **options):
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    return proc.run(Stag.binary, *words, **options)


def guest(lab, script, clients, timeout=400, memory_mib=512):
    """Boot LIO and run the script, which asks for clients by name: each is a case of its own."""
    proc.need("rdma", "ip")
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    uml.network_up()

    def case(name, client):
        return lambda: lab.report.case(f"lio: {name}", client)

    uml.run_cases(lab, "lio", 'case_ "siw and isert are up" eval "siw_up && lio_up 256"\n' + script, timeout,
                  {word: case(name, client) for word, (name, client) in clients.items()}, memory_mib=memory_mib)


def bench(*words, timeout=120, **options):
    """A verified run of `stag bench`; its runs."""
    printed = stag("bench", "--json", "--verify", "--destroy", *words, URL, timeout=timeout, **options)
    runs = json.loads(printed[printed.index("{"):])["runs"]
    expect(runs, f"stag bench tells of no run: {printed[:300]}")
    return runs


def clients(lab):
    folder = lab.new_folder("lio")
    data, back = os.path.join(folder, "data"), os.path.join(folder, "back")
    with open(data, "wb") as file:
        file.write(os.urandom(40 * MIB + 12345))

    def ls():
        printed = stag("ls", "--units", f"iser://{uml.GUEST}:3260")
        expect(URL.rsplit("/", 1)[0] in printed, f"stag ls: {printed}")

    def info():
        told = stag("info", URL)
        expect("512" in told, f"stag info: {told}")

    def there_and_back(*words):
        def client():
            stag("write", "-q", "-i", data, *words, URL, timeout=120)
            if os.path.exists(back):
                os.remove(back)
            stag("read", "-q", "-o", back, "--length", os.path.getsize(data), *words, URL, timeout=120)
            proc.run("cmp", data, back)
        return client

    def copy():
        stag("cp", "-q", "--verify", data, URL, timeout=120)

    return {
        "ls": ("stag ls lists LIO's target over iSER", ls),
        "info": ("stag info of LIO's disk", info),
        "one": ("write and read at depth 1", there_and_back("--depth", 1)),
        "deep": ("write and read at depth 128, 64 KiB", there_and_back("--depth", 128, "--block", "64K")),
        "blocks": ("write and read by 4 KiB", there_and_back("--depth", 32, "--block", "4K")),
        "large": ("write and read by 16 MiB", there_and_back("--depth", 4, "--block", "16M")),
        "offset": ("write and read from an odd offset", there_and_back("--offset", 12345)),
        "crc": ("with CRC required", there_and_back("--rdma-crc", "require")),
        "nocrc": ("with no CRC", there_and_back("--rdma-crc", "never")),
        # A long round trip has the client send more with each command, to a target that agrees to more than it takes.
        "far": ("write and read at depth 1 over a long path", there_and_back("--depth", 1)),
        "copy": ("stag cp verifies", copy),
        "sizes": ("random reads and writes of 512 B to 1 MiB are verified", lambda: bench(
            "--pattern", "randrw", "--bs", "512..1M", "--depth", "4", "--time", "0.3", "--span", "8M", "--fill")),
        "depths": ("random reads and writes at depth 1 to 128 are verified", lambda: bench(
            "--pattern", "randrw", "--bs", "16k", "--depth", "1,8,32,128", "--time", "0.4", "--span", "8M", "--fill")),
        "sessions": ("eight sessions at once are verified", lambda: bench(
            "--pattern", "randrw", "--bs", "16k", "--depth", "4", "--sessions", "8", "--time", "2", "--span", "32M", "--fill")),
        "network": ("over a network that delays and loses, all is verified", lambda: bench(
            "--pattern", "randrw", "--bs", "64k", "--depth", "16", "--time", "4", "--span", "32M", "--fill", timeout=400)),
    }


SCRIPT = r"""
for client in ls info one deep blocks large offset crc nocrc copy sizes depths sessions; do ask_and_wait $client; done
network 2ms 0%; ask_and_wait far; network fine
network 2ms 1%; ask_and_wait network; network fine
case_ "the guest's kernel had no fault" eval '! dmesg | grep -iE "bug:|oops|panic"'
"""


def everything(lab):
    guest(lab, SCRIPT, clients(lab), timeout=600)


def killed(lab):
    """The machine of the target dies twice under load, and comes back. (To switch LIO off under load instead would wait for ever in
    its kernel every now and then.)"""
    proc.need("rdma", "ip")
    disk = os.path.join(lab.new_folder("disk"), "disk")
    with open(disk, "wb") as file:
        file.truncate(64 * MIB)
    ended = []

    def client():
        try:
            ended.append(bench("--pattern", "randrw", "--bs", "64k", "--depth", "16", "--time", "12", "--span", "64M",
                               "--reconnect", "60", timeout=400))
        except Exception as why:  # told below: this is a thread
            ended.append(why)

    load = threading.Thread(target=client)

    def serve(then, killed_when):
        """One boot: `then` is done when the target is up, and the machine killed as `killed_when` says, asked from then on."""
        up = []
        machine = uml.Guest(lab.new_folder("guest"), f'siw_up && lio_up {uml.PROGRAMS}/disk && ask up && sleep 300', 256,
                            os.path.dirname(disk))

        def is_up():
            then()
            up.append(time.monotonic())

        code, output = machine.run(200, {"up": is_up}, lambda: bool(up) and killed_when(time.monotonic() - up[0]))
        expect(code is None, f"the target's machine ended by itself: {output}")

    serve(load.start, lambda seconds: seconds > 2)
    serve(lambda: None, lambda seconds: seconds > 4)
    serve(lambda: None, lambda _: not load.is_alive())
    if isinstance(ended[0], Exception):
        raise ended[0]
    expect(ended[0][0]["reconnects"] >= 1, f"the load never noticed: {ended[0]}")


CASES = [("lio: our initiator's script ran to its end", everything),
         ("lio: a target whose machine dies twice under load: all that is read is verified", killed)]
