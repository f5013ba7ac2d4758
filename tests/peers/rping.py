"""Our software iWARP and the lab's, by rping on the loopback: markers, CRC, sizes of FPDUs, both ways.

Linux's siw, in `kernel.iwarp`, knows no markers; here every one is looked at.
"""

import itertools

from lab import iwarp, proc, rping
from lab.report import expect

HOST = "127.0.0.1"
SIZES = (2, 64, 501, 512, 4099, 65000)


def we_serve(lab):
    program = rping.program()
    for crc, their_markers in itertools.product(("never", "require"), (False, True)):
        port = proc.free_port(HOST)
        words = ["--markers"] if their_markers else []
        with rping.running(program, "-s", "-P", "-a", HOST, "-p", port, "-S", 65000, "--crc", crc, *words):
            for our_markers, our_crc, revision, fpdu in itertools.product((False, True), (False, True), (1, 2), (300, 16384)):
                setup = iwarp.Setup(crc=our_crc, markers=our_markers, revision=revision, fpdu=fpdu)
                with iwarp.connect(HOST, port, setup) as stream:
                    expect(stream.crc == (our_crc or crc == "require"), f"CRC: {setup}, {crc}, and then {stream.crc}")
                    expect(stream.markers_out == their_markers, "the server wants other markers than it was told to")
                    for size in SIZES:
                        rping.ping(stream, 2, size)
                    expect(not stream.counts["Terminate"], "a Terminate")


def we_call(lab):
    program, port = rping.program(), proc.free_port(HOST)
    for crc, markers, fpdu in itertools.product(("never", "prefer", "require"), (False, True), (None, 1000)):
        setups = [iwarp.Setup(crc=own, markers=own_markers, fpdu=size)
                  for own, own_markers, size in itertools.product((None, True), (False, True), (300, 16384))]
        server = rping.Server(HOST, port, *setups)
        words = (["--markers"] if markers else []) + (["--fpdu", fpdu] if fpdu else [])
        for number in range(len(setups)):
            size = SIZES[number % len(SIZES)]
            proc.run(program, "-c", "-a", HOST, "-p", port, "-C", 3, "-S", size, "-V", "--crc", crc, *words, timeout=90)
        served = server.finish()
        expect(all(rounds == 3 for _, rounds in served), f"rounds: {served}")
        wanted = [bool(setup.crc) or crc != "never" for setup in setups]
        expect([used for used, _ in served] == wanted, f"CRC {crc}: used {served}")


CASES = [
    ("the lab's peer calls, Stag serves: CRC, markers, revisions, small and large FPDUs", we_serve),
    ("Stag calls, the lab's peer serves: CRC, markers, small and large FPDUs", we_call),
]
