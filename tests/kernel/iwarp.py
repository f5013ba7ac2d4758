"""Linux's software iWARP (siw) in the lab's guest, by rping, against peers of this side: our own stack, and the lab's.

The lab's own peer comes first: when it fails, the guest is at fault, or the test, and not the stack.
"""

import threading

from lab import iwarp, proc, rping, uml
from lab.report import expect

PORT = 7174


def guest(lab, script, timeout=90, requests=None, **values):
    proc.need("rping", "rdma", "ip")
    uml.network_up()
    uml.run_cases(lab, "iwarp", "siw_up || exit 1\n" + script, timeout, requests, PORT=PORT, **values)


class LabServer:
    """rping's server, of the lab, for so many connections; each is set up as `setups` say."""

    def __init__(self, *setups):
        self.setups, self.served, self.errors, self.streams = setups, [], [], []
        self.listener = iwarp.listen(uml.HOST, PORT)
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        try:
            for setup in self.setups:
                with iwarp.accept(self.listener, setup, 60) as stream:
                    self.served.append((stream.crc, rping.serve(stream)))
        except Exception as error:  # Reported by the case that waits for it.
            self.errors.append(error)
        finally:
            self.listener.close()

    def finish(self):
        self.thread.join(30)
        if self.errors:
            raise self.errors[0]
        return self.served


# $CRC and $MODE only name the case.
CLIENT = r"""
case_ "$WHO serves, siw's client, $HOW: small" timeout 40 rping -c -a $HOST -p $PORT -C 20 -S 64 -V
case_ "$WHO serves, siw's client, $HOW: 65000 bytes" timeout 40 rping -c -a $HOST -p $PORT -C 20 -S 65000 -V
case_ "$WHO serves, siw's client, $HOW: 500 bytes, not a multiple of 4" timeout 40 rping -c -a $HOST -p $PORT -C 20 -S 501 -V
"""


def lab_serves(lab):
    """The guest itself: siw's client and the lab's server, with CRC and without."""
    uml.network_up()
    for crc in (None, True):
        server = LabServer(*[iwarp.Setup(crc=crc)] * 3)
        guest(lab, CLIENT, WHO="the lab's peer", HOW="CRC" if crc else "no CRC")
        expect(server.finish() == [(bool(crc), 20)] * 3, f"served (CRC, rounds): {server.served}")


# A server for each client: rping's persistent server now and then misses the first Send of a client that is quick.
SERVER = r"""
listening() { for _ in $(seq 50); do ss -Hltn "sport = :$PORT" | grep -q . && return 0; sleep 0.1; done; return 1; }
call() { timeout 60 rping -s -a $GUEST -p $PORT -S 65000 & local server=$!; listening && ask_and_wait "$1" && wait $server; }
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


CASES = [
    ("iwarp: siw's client reaches the lab's own peer", lab_serves),
    ("iwarp: the lab's own peer reaches siw's server", lab_calls),
]
