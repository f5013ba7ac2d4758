"""Linux's software iWARP (siw) in the lab's guest, by rping, against peers of this side: our own stack, and the lab's.

The lab's own peer comes first: when it fails, the guest is at fault, or the test, and not the stack.
"""

from lab import iwarp, proc, rping, uml
from lab.report import expect

PORT = 7174


def guest(lab, script, timeout=400, requests=None, port=PORT, **values):
    proc.need("rping", "rdma", "ip")
    uml.network_up()
    uml.run_cases(lab, "iwarp", "siw_up || exit 1\n" + script, timeout, requests, PORT=port, **values)


# $WHO and $HOW only name the case.
CLIENT = r"""
case_ "$WHO serves, siw's client, $HOW: small" timeout 90 rping -c -a $HOST -p $PORT -C 20 -S 64 -V
case_ "$WHO serves, siw's client, $HOW: 65000 bytes" timeout 90 rping -c -a $HOST -p $PORT -C 20 -S 65000 -V
case_ "$WHO serves, siw's client, $HOW: 500 bytes, not a multiple of 4" timeout 90 rping -c -a $HOST -p $PORT -C 20 -S 501 -V
"""


def lab_serves(lab):
    """The guest itself: siw's client and the lab's server, with CRC and without."""
    uml.network_up()
    for crc in (None, True):
        server = rping.Server(uml.HOST, PORT, *[iwarp.Setup(crc=crc)] * 3)
        guest(lab, CLIENT, WHO="the lab's peer", HOW="CRC" if crc else "no CRC")
        expect(server.finish() == [(bool(crc), 20)] * 3, f"served (CRC, rounds): {server.served}")


# A server for each client: rping's persistent server now and then misses the first Send of a client that is quick.
SERVER = r"""
listening() { for _ in $(seq 200); do ss -Hltn "sport = :$PORT" | grep -q . && return 0; sleep 0.1; done; return 1; }
call() { timeout 120 rping -s -a $GUEST -p $PORT -S 65000 & local server=$!; listening && ask_and_wait "$1" && wait $server; }
for how in $HOWS; do case_ "siw serves, $WHO calls, $how" call $how; done
"""


def lab_calls(lab):
    """The lab's client and siw's server. Markers: siw refuses whoever wants them."""
    def client(crc, size):
        def call():
            with iwarp.connect(uml.GUEST, PORT, iwarp.Setup(crc=crc, settle=0.1)) as stream:
                expect(stream.crc == crc, f"CRC asked for: {crc}, answered: {stream.crc}")
                rping.ping(stream, 10, size)
        return call

    hows = {"no-CRC,64": client(False, 64), "CRC,64": client(True, 64), "CRC,4099": client(True, 4099),
            "no-CRC,65000": client(False, 65000)}
    guest(lab, SERVER, requests=hows, WHO="the lab's peer", HOWS=" ".join(hows))


def we_serve(lab):
    """siw's client and our own server: the CRC as siw asks for it, which is never, and required."""
    program = rping.program()
    uml.network_up()
    for port, crc, how in ((PORT + 1, "never", "no CRC"), (PORT + 2, "require", "CRC")):
        with rping.running(program, "-s", "-P", "-a", uml.HOST, "-p", port, "-S", 65000, "--crc", crc):
            guest(lab, CLIENT + POOR, port=port, WHO="Stag", HOW=how)


# Over a network that loses what the guest sends, and delays it.
POOR = r"""
network 2ms 2%
case_ "$WHO serves, siw's client, $HOW: delay and loss" timeout 120 rping -c -a $HOST -p $PORT -C 30 -S 16000 -V
network 20ms 0%
case_ "$WHO serves, siw's client, $HOW: a long way" timeout 120 rping -c -a $HOST -p $PORT -C 10 -S 65000 -V
network fine
"""


def we_call(lab):
    """Our own client and siw's server."""
    program = rping.program()

    def client(crc, size, *words):
        return lambda: proc.run(program, "-c", "-a", uml.GUEST, "-p", PORT, "-C", 20, "-S", size, "-V", "--crc", crc, *words)

    hows = {"no-CRC,64": client("never", 64), "CRC,64": client("require", 64), "CRC,4099": client("prefer", 4099),
            "no-CRC,65000": client("never", 65000), "CRC,65000": client("require", 65000),
            "CRC,small-FPDUs": client("require", 20000, "--fpdu", 1000)}
    guest(lab, SERVER + POOR_SERVER, requests={**hows, "poor": client("require", 16000)}, WHO="Stag", HOWS=" ".join(hows))


POOR_SERVER = r"""
network 2ms 2%
case_ "siw serves, $WHO calls, over delay and loss" call poor
"""


CASES = [
    ("iwarp: siw's client reaches the lab's own peer", lab_serves),
    ("iwarp: the lab's own peer reaches siw's server", lab_calls),
    ("iwarp: siw's client reaches Stag", we_serve),
    ("iwarp: Stag reaches siw's server", we_call),
]
