"""Configurations of other targets, made Stag's by `stag import`: initiators see the same disks before and after."""

import os
import re
import struct
import subprocess
from types import SimpleNamespace

from lab import proc, wire
from lab.report import expect
from lab.target import Chap, Stag

HOST = "iqn.2026-01.example.lab:host"
ONE, TWO = "iqn.2026-01.example.lab:one", "iqn.2026-01.example.lab:two"


def seen(portal, name, lun, chap):
    """What an initiator knows a disk by: vendor, product and revision, its serial number, its designators of NAA 6, its size."""
    url = f"iscsi://{portal}/{name}/{lun}"
    host, _, port = portal.rpartition(":")
    with wire.session(SimpleNamespace(urls=[url], host=host, port=int(port)), initiator=HOST, chap=chap) as session:
        def inquiry(page=None):
            cdb = struct.pack(">BBBHB", 0x12, page is not None, page or 0, 255, 0)
            status, _, data = session.run(cdb, 255)
            expect(status == 0, f"INQUIRY of page {page} ends with {status}")
            return data

        capacity = session.run(struct.pack(">BBQIBB", 0x9e, 0x10, 0, 32, 0, 0), 32)[2]
        page, names, at = inquiry(0x83), [], 4
        while at < 4 + struct.unpack_from(">H", page, 2)[0]:
            if page[at + 1] & 0x3f == 3 and page[at + 4] >> 4 == 6:
                names.append(page[at + 4:at + 4 + page[at + 3]].hex())
            at += 4 + page[at + 3]
        # Linux's target sends a zero behind it.
        serial = inquiry(0x80)
        return {"inquiry": inquiry()[8:36], "serial": serial[4:4 + serial[3]].strip(b" \0"), "names": names, "capacity": capacity[:12],
                "readonly": session.run(bytes([0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 192, 0]), 192)[2][3] & 0x80}


def tgt(lab):
    """Two of tgt's targets: numbers and names that it gives by itself, and such as are written, CHAP, ACLs, an included file."""
    proc.need("tgtd", "tgt-admin", "tgtadm")
    alice = Chap("alice", "s" * 14)
    folder = lab.new_folder("tgt")
    for name in ("a", "b", "c"):
        with open(f"{folder}/{name}.img", "wb") as file:
            file.truncate(8 << 20)
    os.mkdir(f"{folder}/conf.d")
    with open(f"{folder}/conf.d/two.conf", "w") as file:
        file.write(f"<target {TWO}>\n  backing-store {folder}/b.img\n</target>\n")
    with open(f"{folder}/targets.conf", "w") as file:
        file.write(f"""default-driver iscsi
include {folder}/conf.d/*.conf
<target {ONE}>
  <backing-store {folder}/c.img>
    lun 7
    vendor_id ACME
    product_id Thing
    product_rev 1.0
    scsi_sn SERIAL-7
    write-cache off
    block-size 4096
    readonly 1
  </backing-store>
  <backing-store {folder}/a.img>
  </backing-store>
  incominguser alice {alice.secret}
  initiator-name {HOST}
</target>
""")
    disks = [(ONE, 1, alice), (ONE, 7, alice), (TWO, 1, None)]
    portal, channel = f"127.0.0.1:{proc.free_port()}", 200 + os.getpid() % 20000
    os.makedirs("/var/run/tgtd", exist_ok=True)
    with open(f"{folder}/log", "ab") as log:
        server = subprocess.Popen(["tgtd", "-f", "-C", str(channel), "--iscsi", f"portal={portal}"], stdout=log, stderr=log)
    try:
        proc.wait_until(lambda: proc.run("tgtadm", "-C", channel, "--mode", "sys", "--op", "show", ok=None).code == 0, 60, "tgtd answers")
        proc.run("tgt-admin", "-C", channel, "-c", f"{folder}/targets.conf", "-e")
        before = [seen(portal, *disk) for disk in disks]
    finally:
        server.kill()
        server.wait()
    same_after_import(folder, f"{folder}/targets.conf", disks, before)


def same_after_import(folder, file, disks, before):
    """`stag import FILE` makes a configuration with which Stag serves `disks` (target, LUN, CHAP) as initiators have seen them `before`."""
    config = f"{folder}/stag.toml"
    proc.run(Stag.binary, "import", file, "-o", config)
    expect(os.stat(config).st_mode & 0o777 == 0o600, "others may read the secrets")
    with open(config) as opened:
        text = opened.read()
    port = proc.free_port()
    with open(config, "w") as opened:
        opened.write(re.sub(r'"[0-9.]+:3260"', f'"127.0.0.1:{port}"', text).replace('"[::]:3260"', f'"[::1]:{port}"'))
    with open(f"{folder}/log", "ab") as log:
        server = subprocess.Popen([Stag.binary, "serve", "--config", config, "--control", f"{folder}/control.sock"],
                                  stdout=subprocess.DEVNULL, stderr=log)
    try:
        portal = f"127.0.0.1:{port}"
        proc.wait_until(lambda: proc.run(Stag.binary, "ls", portal, ok=None).code == 0, 60, "stag answers")
        after = [seen(portal, *disk) for disk in disks]
    finally:
        proc.end(server)
    for disk, old, new in zip(disks, before, after):
        expect(old == new, f"{disk[0]} LUN {disk[1]}:\nbefore {old}\nafter  {new}")


CASES = [("tgt's targets are imported: initiators see the same disks", tgt)]

