"""Our own initiator, by iser://, against Linux's own target (LIO's isert) over siw, in the lab's guest.

The guest serves; its script asks this side to run the client, and breaks things under it meanwhile.
"""

import json
import os

from lab import proc, uml
from lab.report import Skip, expect
from lab.target import Stag

URL = f"iser://{uml.GUEST}:3260/iqn.2026-01.example.lab:lio/0"
MIB = 1 << 20


def stag(*words, **options):
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    return proc.run(Stag.binary, *words, **options)


def guest(lab, script, clients, timeout=150, memory_mib=512):
    """Boot LIO and run the script, which asks for clients by name: each is a case of its own."""
    proc.need("rdma", "ip")
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    uml.network_up()

    def case(name, client):
        return lambda: lab.report.case(f"lio: {name}", client)

    uml.run_cases(lab, "lio", 'case_ "siw and isert are up" eval "siw_up && lio_up 256"\n' + script, timeout,
                  {word: case(name, client) for word, (name, client) in clients.items()}, memory_mib=memory_mib)


def bench(*words, timeout=60, **options):
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
            stag("write", "-q", "-i", data, *words, URL, timeout=60)
            if os.path.exists(back):
                os.remove(back)
            stag("read", "-q", "-o", back, "--length", os.path.getsize(data), *words, URL, timeout=60)
            proc.run("cmp", data, back)
        return client

    def copy():
        stag("cp", "-q", "--verify", data, URL, timeout=60)

    def lost():
        """The target goes away under load, and comes back."""
        bench("--pattern", "randrw", "--bs", "64k", "--depth", "16", "--time", "8", "--span", "64M", "--reconnect", "60", timeout=120)

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
        "copy": ("stag cp verifies", copy),
        "sizes": ("random reads and writes of 512 B to 1 MiB are verified", lambda: bench(
            "--pattern", "randrw", "--bs", "512..1M", "--depth", "4", "--time", "0.3", "--span", "8M", "--fill")),
        "depths": ("random reads and writes at depth 1 to 128 are verified", lambda: bench(
            "--pattern", "randrw", "--bs", "16k", "--depth", "1,8,32,128", "--time", "0.4", "--span", "8M", "--fill")),
        "sessions": ("eight sessions at once are verified", lambda: bench(
            "--pattern", "randrw", "--bs", "16k", "--depth", "4", "--sessions", "8", "--time", "2", "--span", "32M", "--fill")),
        "lost": ("a target that goes away twice under load: all that is read is verified", lost),
        "network": ("over a network that delays and loses, all is verified", lambda: bench(
            "--pattern", "randrw", "--bs", "64k", "--depth", "16", "--time", "4", "--span", "32M", "--fill", timeout=90)),
    }


SCRIPT = r"""
for client in ls info one deep blocks large offset crc nocrc copy sizes depths sessions; do ask_and_wait $client; done
network 2ms 1%; ask_and_wait network; network fine
ask lost; started=$asked
for _ in 1 2; do
  sleep 2; echo 0 >/sys/kernel/config/target/iscsi/$LIO/tpgt_1/enable
  sleep 1; echo 1 >/sys/kernel/config/target/iscsi/$LIO/tpgt_1/enable
done
case_ "the client of the lost target ended" answered $started
case_ "the guest's kernel had no fault" eval '! dmesg | grep -iE "bug:|oops|panic"'
"""


def everything(lab):
    guest(lab, SCRIPT, clients(lab), timeout=240)


CASES = [("lio: our initiator's script ran to its end", everything)]
