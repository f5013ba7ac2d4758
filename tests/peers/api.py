"""The HTTP API: what validators and fuzzers of OpenAPI make of it, a program that manages volumes by it, and hostile clients.

No time is judged.
"""

import contextlib
import http.client
import json
import os
import re
import socket
import threading

from lab import proc, tools, wire
from lab.report import Skip, expect
from lab.target import IQN, Stag, Unit

from .metrics import closed

MIB = 1 << 20
BASE = "/api/v1"


class Api:
    """A client with a token."""

    def __init__(self, port, token, path=None):
        """`path`: of the control socket, which needs no token, instead of the port."""
        self.port, self.token, self.path = port, token, path

    def connection(self):
        connection = http.client.HTTPConnection("127.0.0.1" if self.path is None else "stag", self.port, timeout=60)
        if self.path is not None:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(60)
            connection.sock.connect(self.path)
        return connection

    def ask(self, method, path, body=None, **fields):
        """Status, fields and what JSON says."""
        connection = self.connection()
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, BASE + path, json.dumps(body) if body is not None else None, headers | fields)
        answer = connection.getresponse()
        return answer.status, answer.headers, json.loads(answer.read())

    def done(self, method, path, body=None, **fields):
        status, _, said = self.ask(method, path, body, **fields)
        expect(status == 200, f"{method} {path}: {status} {said}")
        return said

    def follow(self, seen=None):
        """A stream of events; the answer if there is none."""
        connection = self.connection()
        fields = ({"Authorization": f"Bearer {self.token}"} if self.token else {}) | ({"Last-Event-ID": seen} if seen else {})
        connection.request("GET", BASE + "/events", headers=fields)
        return connection.getresponse()


def happened(stream, **wanted):
    """The next event of a stream that has these members, and its id. Server-sent events as the standard has them."""
    number, data = None, []
    while line := stream.readline():
        name, _, value = line.decode().rstrip("\n").partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            number = value
        elif name == "data":
            data.append(value)
        elif not name and not value and line == b"\n":
            event = json.loads("\n".join(data)) if data else {}
            if event and wanted.items() <= event.items():
                return number, event
            data = []
    raise AssertionError(f"the stream has ended without {wanted}")


@contextlib.contextmanager
def managed(lab, *units, http=()):
    """A target with the API, its administrator, and a folder that the sandbox leaves in reach. `http` has more lines of [http]."""
    if lab.kind != "stag":
        raise Skip("stag's own API")
    port, state, folder = proc.free_port(), lab.new_folder("state"), lab.new_folder("volumes")
    before = os.environ.get("STATE_DIRECTORY")
    os.environ["STATE_DIRECTORY"] = state
    try:
        with lab.serve(*units, top={"managed": True, "sandbox-directories": [folder]},
                       more=["[http]", f'listen = "127.0.0.1:{port}"', "api = true", *http]) as target:
            def token(role):
                return proc.run(Stag.binary, "token", "--control", target.control, "add", role, "--role", role).strip()
            yield target, Api(port, token("admin")), token, folder
    finally:
        if before is None:
            del os.environ["STATE_DIRECTORY"]
        else:
            os.environ["STATE_DIRECTORY"] = before


def validator(lab):
    """openapi-spec-validator takes the document as OpenAPI 3.1, and finds a fault where there is one."""
    validate, env = tools.python("openapi-spec-validator", "--schema", "3.1.0")
    with managed(lab, Unit(memory=True)) as (_, api, _, folder):
        document = api.done("GET", "/openapi.json")
        path = os.path.join(folder, "openapi.json")

        def check():
            with open(path, "w", encoding="utf-8") as file:
                json.dump(document, file)
            return proc.run(*validate, path, env=env, ok=None)
        said = check()
        expect(said.code == 0, proc.tail(said))
        expect(document["openapi"].startswith("3.1") and len(document["paths"]) > 15, "few paths")
        del document["paths"]["/targets"]["get"]["responses"]
        document["info"].pop("title")
        expect(check().code != 0, "the validator takes everything")


def fuzzed(lab):
    """schemathesis asks for all operations, in order and out of it: no error of the server, no status and no body that the document does not have."""
    st, env = tools.python("st", "run")
    with managed(lab, Unit(mib=16, memory=True)) as (target, api, _, folder):
        # It leaves a folder where it runs.
        said = proc.run("env", "-C", folder, *st, f"http://127.0.0.1:{api.port}{BASE}/openapi.json", "-H", f"Authorization: Bearer {api.token}", "--no-color",
                        "--max-time", "40", "--max-examples", "20", "--seed", "20", "--no-shrink", "--continue-on-failure", "--generation-database", "none",
                        # It waits for the end of an answer, and a stream has none.
                        "--exclude-path", "/events",
                        "--phases", "examples,coverage,fuzzing",
                        "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance",
                        env=env, timeout=150, ok=None)
        expect(said.code == 0, proc.tail(said, 60))
        expect(api.token not in said, "the token is shown")
        # It may have drained the daemon.
        for drain in api.done("GET", "/drain"):
            api.done("POST", "/undrain", {what: drain[what] for what in ("target", "portal") if what in drain} or {"all": True})
        with wire.session(target) as session:
            session.write(0, b"\x5a" * 4096)
            expect(session.read(0, 8) == b"\x5a" * 4096, "an initiator reads other data")
            session.logout()
        log = open(os.path.join(os.environ["STATE_DIRECTORY"], "audit.log"), encoding="utf-8").read().strip().split("\n")
        expect(len(log) > 20 and all(json.loads(line) for line in log), "changes were recorded")


def certified(folder, name):
    """Makes a certificate of its own authority for 127.0.0.1; `name` tells it from others."""
    certificate, key = os.path.join(folder, "new.pem"), os.path.join(folder, "new.key")
    proc.run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate)
    # As certbot and others do it: a new file in the place of the old one.
    os.rename(key, os.path.join(folder, "stag.key"))
    os.rename(certificate, os.path.join(folder, "stag.pem"))
    return os.path.join(folder, "stag.pem")


def encrypted(lab):
    """curl and OpenSSL get answers over TLS 1.2 and 1.3 and nothing over older ones or in the clear; a renewed certificate is taken."""
    proc.need("curl", "openssl")
    tls = lab.new_folder("tls")
    authority = certified(tls, "one.example.org")
    lines = [f'certificate = "{tls}/stag.pem"', f'key = "{tls}/stag.key"']
    with managed(lab, Unit(memory=True), http=lines) as (_, api, _, folder):
        def curl(*words, scheme="https"):
            said = proc.run("curl", "--silent", "--show-error", "--max-time", "20", "--cacert", authority, "--header", f"Authorization: Bearer {api.token}",
                            *words, f"{scheme}://127.0.0.1:{api.port}{BASE}/status", ok=None)
            return said.code, said
        for version in ("1.2", "1.3"):
            code, said = curl("--tls-max", version, f"--tlsv{version}")
            expect(code == 0 and "generation" in json.loads(said), f"TLS {version}: {said}")
        code, said = curl("--tls-max", "1.1", "--tlsv1.0", "--ciphers", "DEFAULT@SECLEVEL=0")
        expect(code == 35, f"TLS 1.1 is no error of the handshake: {code} {said}")
        code, said = curl(scheme="http")
        expect(code == 0 and "use https://" in said, f"in the clear: {code} {said}")

        def subject():
            shown = proc.run("openssl", "s_client", "-connect", f"127.0.0.1:{api.port}", stdin=b"", ok=None)
            return re.search(r"subject=CN ?= ?(\S+)", shown)[1]
        expect(subject() == "one.example.org", "the certificate is another one")
        # Nobody who only begins to shake hands keeps others out.
        waiting = [socket.create_connection(("127.0.0.1", api.port)) for _ in range(200)]
        expect(curl()[0] == 0, "200 clients that say nothing keep one out")
        for idle in waiting:
            idle.close()
        authority = certified(tls, "two.example.org")
        proc.wait_until(lambda: subject() == "two.example.org", 60, "the renewed certificate is in use", 1)
        expect(curl()[0] == 0, "no answer with the renewed certificate")


def volumes(lab):
    """A volume that the API makes is there for QEMU at once, grows, and goes; what the file has stays."""
    proc.need("qemu-io", "qemu-img")
    with managed(lab, Unit(mib=16, memory=True)) as (target, api, _, folder):
        own = "iqn.2026-01.org.example:volume"
        url = target.urls[0].replace(IQN, own)
        body = {"unit": [{"lun": 0, "path": os.path.join(folder, "a.img"), "size": "8M"}]}
        plan = api.done("PUT", f"/targets/{own}?plan=1", body)
        expect(not plan["applied"] and len(plan["plan"]["changes"]) == 1, f"{plan}")
        api.done("PUT", f"/targets/{own}", body)
        proc.run("qemu-io", "-f", "raw", "-c", "write -P 0x5a 0 1M", url)
        body["unit"][0]["size"] = "16M"
        api.done("PUT", f"/targets/{own}", body, **{"If-Match": f'"{api.done("GET", "/status")["generation"]}"'})
        expect(str(16 * MIB) in proc.run("qemu-img", "info", "--output=json", "-f", "raw", url), "it has not grown")
        proc.run("qemu-io", "-f", "raw", "-c", "read -P 0x5a 0 1M", url)
        expect(api.ask("PUT", f"/targets/{IQN}", body)[0] == 422, "the file's target was replaced")
        # Whoever plans on what was, loses.
        stale = f'"{plan["generation"]}"'
        expect(api.ask("DELETE", f"/targets/{own}", **{"If-Match": stale})[0] == 412, "a lost update")
        api.done("DELETE", f"/targets/{own}")
        expect([one["iqn"] for one in api.done("GET", "/targets")] == [IQN], "targets are left")
        expect(os.path.getsize(os.path.join(folder, "a.img")) == 16 * MIB, "the file is gone")


def together(lab):
    """Eight programs add units by what they have seen: none is lost, and each loses a race now and then."""
    with managed(lab, Unit(memory=True)) as (_, api, _, _):
        own, lost, wrong = "/targets/iqn.2026-01.org.example:many", [], []
        api.done("PUT", own, {})

        def add(first):
            for lun in range(first, first + 8):
                while True:
                    _, fields, _ = api.ask("GET", "/document")
                    status, _, said = api.ask("PUT", f"{own}/units/{lun}", {"path": "mem:1M"}, **{"If-Match": fields["ETag"]})
                    if status == 200:
                        break
                    (lost if status == 412 else wrong).append((status, said))
                    if status != 412:
                        return
        threads = [threading.Thread(target=add, args=(first,)) for first in range(0, 64, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expect(not wrong, f"{wrong[:3]}")
        expect(len(api.done("GET", own)["state"]["units"]) == 64, "units were lost")


def events(lab):
    """A reader of server-sent events, and curl, learn of sessions, changes, drains, reservations and problems, and go on after a cut."""
    proc.need("curl")
    with managed(lab, Unit(mib=16, memory=True)) as (target, api, token, folder):
        own, image = "iqn.2026-01.org.example:own", os.path.join(folder, "a.img")
        stream = api.follow()
        expect(stream.status == 200 and stream.headers["Content-Type"] == "text/event-stream", f"{stream.status} {stream.headers}")
        paths = {"explicit": True, "group": [{"id": 7, "portal-groups": [1]}]}
        done = api.done("PUT", f"/targets/{own}", {"unit": [{"lun": 0, "path": image, "size": "8M"}], "alua": paths})
        began, event = happened(stream, what="apply")
        expect(event["generation"] == done["generation"], f"{event}")
        _, event = happened(stream, what="change")
        expect(event["who"] == "token admin" and event["asked"] == f"PUT {BASE}/targets/{own}" and event["result"] == "done", f"{event}")
        with wire.session(target, name=own) as first, wire.session(target, "iqn.2026-01.example.lab:other", b"\x40\0\0\2\0\0", name=own) as second:
            _, event = happened(stream, what="login", initiator="iqn.2026-01.example.lab:other")
            expect(event["target"] == own and event["tsih"] > 0, f"{event}")

            def reserve(session, action, key, new):
                status, sense, _ = session.run(bytes([0x5f, action, 1, 0, 0, 0, 0, 0, 24, 0]), out=key.to_bytes(8) + new.to_bytes(8) + bytes(8), lun=0)
                expect(status == 0, f"PERSISTENT RESERVE OUT {action}: {status} {sense}")
            reserve(first, 0, 0, 0xa)
            reserve(first, 1, 0xa, 0)
            reserve(second, 0, 0, 0xb)
            reserve(second, 4, 0xb, 0xa)
            _, event = happened(stream, what="preempt")
            expect(event["initiator"] == "iqn.2026-01.example.lab:other" and event["others"] == 1, f"{event}")
            # SET TARGET PORT GROUPS.
            status, sense, _ = second.run(bytes([0xa4, 0xa, 0, 0, 0, 0, 0, 0, 0, 8]), out=bytes([0, 0, 0, 0, 1, 0, 0, 7]), lun=0)
            expect(status == 0, f"SET TARGET PORT GROUPS: {status} {sense}")
            _, event = happened(stream, what="alua")
            named = event["initiator"], event["group"], event["state"]
            expect(named == ("iqn.2026-01.example.lab:other", 7, "active/non-optimized"), f"{event}")
            plan = api.done("POST", "/drain?plan=1", {"target": own, "timeout": 1})
            named = [one["what"] for one in plan["plan"]["changes"] if one["kind"] == "removed"]
            expect(not plan["applied"] and len(named) == 2 and all("iqn.2026-01.example.lab:" in what for what in named), f"{plan}")
            api.done("POST", "/drain", {"target": own, "timeout": 1})
            happened(stream, what="drain", scope=f"target {own}")
            happened(stream, what="end", initiator="iqn.2026-01.example.lab:wire")
        happened(stream, what="drained")
        # A client that was cut off goes on behind what it has seen last.
        stream.close()
        plan = api.done("POST", "/undrain?plan=1", {"target": own})
        expect(not plan["applied"] and [one["what"] for one in plan["plan"]["changes"]] == [f"target {own}: logins are accepted again"], f"{plan}")
        api.done("POST", "/undrain", {"target": own})
        expect(api.ask("POST", "/undrain?plan=1", {"target": own})[0] == 409, "there is nothing to undo")
        # What changes states of paths is planned, too.
        for state, told in [("standby", ["from active/non-optimized to standby"]), ("active/non-optimized", [])]:
            plan = api.done("POST", "/alua?plan=1", {"target": own, "group": 7, "state": state})
            expect([one["what"] for one in plan["plan"]["changes"]] == [f"{own}: target port group 7 {what}" for what in told], f"{plan}")
        expect(api.ask("POST", "/alua?plan=1", {"target": own, "group": 9, "state": "standby"})[0] == 409, "there is no group 9")
        stream = api.follow(began)
        happened(stream, what="preempt")
        happened(stream, what="undrain")
        os.rename(image, image + ".away")
        _, event = happened(stream, what="problem")
        expect(event["served"] == f"{own} LUN 0" and event["kind"] == "replaced", f"{event}")
        os.rename(image + ".away", image)
        happened(stream, what="problem-over", served=f"{own} LUN 0")
        said = proc.run("curl", "--silent", "--no-buffer", "--max-time", "5", "--header", f"Authorization: Bearer {api.token}",
                        "--header", "Last-Event-ID: 1", f"http://127.0.0.1:{api.port}{BASE}/events", ok=None)
        expect(said.code == 28 and '"what":"lost"' in said and '"what":"preempt"' in said, f"{said}")
        # Who may follow, and for how long.
        expect(Api(api.port, "").follow().status == 401 and Api(api.port, token("metrics")).follow().status == 403, "a stranger follows")
        reader = Api(api.port, token("read")).follow()
        proc.run(Stag.binary, "token", "--control", target.control, "remove", "read")
        expect(reader.status == 200 and b"PUT" not in reader.read(), "one without a token follows")


def local(lab):
    """curl manages a daemon by its control socket, without a token and without [http]; others' silence keeps nobody out."""
    proc.need("curl")
    if lab.kind != "stag":
        raise Skip("stag's own API")
    with lab.serve(Unit(mib=16, memory=True)) as target:
        def curl(path, *words):
            return json.loads(proc.run("curl", "--silent", "--show-error", "--unix-socket", target.control, f"http://stag{BASE}{path}", *words))
        expect([one["iqn"] for one in curl("/targets")] == [IQN], "curl sees other targets")
        drain = ["-H", "Content-Type: application/json", "-d", json.dumps({"target": IQN, "timeout": 1})]
        api = Api(0, "", target.control)
        with contextlib.closing(api.follow()) as stream:
            expect(curl("/drain", *drain)["target"] == IQN, "nothing is drained")
            happened(stream, what="drain", scope=f"target {IQN}")
            happened(stream, what="change", who=f"user {os.getuid()}", asked=f"POST {BASE}/drain")
        expect(curl("/undrain", *drain)["status"] == 400 and curl("/drain")[0]["state"] == "drained", "it is not drained")
        proc.run(Stag.binary, "drain", "--control", target.control, "--undo", IQN)
        expect(api.ask("PUT", f"/targets/{IQN}", {})[0] in (409, 422), "a daemon without a managed document changes it")
        # Clients that begin to speak either protocol hold a place each, until the next one comes.
        def begun(first):
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(target.control)
            with contextlib.suppress(OSError):
                connected.sendall(first)
            return connected
        silent = [begun(first) for first in [b"", b'{"do"', b"GE"] * 40]
        proc.wait_until(lambda: proc.run("curl", "--silent", "--unix-socket", target.control, f"http://stag{BASE}/health", ok=None).code == 0,
                        60, "silent clients go in the end", 1)
        for connected in silent:
            connected.close()
        for request, status in [(b"GET /etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", b"404"), (b"GET /%2e%2e HTTP/1.1\r\n\r\n", b"404"),
                                (b"G" * 100000, b"431"), (b"G\0\r\n\r\n", b"400")]:
            def answered():
                with contextlib.closing(begun(request)) as connected:
                    said = connected.recv(65536)
                    # Until those that went have left their places, there is none.
                    return said if b"are at work" not in said else None
            said = proc.wait_until(answered, 60, "a place for another client", 0.1)
            expect(said[9:12] == status, f"{request[:60]!r} is answered with {said[:200]!r}")
        expect(api.ask("GET", "/health")[0] == 200, "the daemon answers no more")


def members(lab):
    """By the control socket members of the group `stag` have the role operate, and others get nothing."""
    proc.need("curl", "setpriv")
    if lab.kind != "stag":
        raise Skip("stag's own API")
    file = os.path.join(lab.new_folder("etc"), "group")
    with open("/etc/group", encoding="utf-8") as known, open(file, "w", encoding="utf-8") as group:
        group.writelines([line for line in known if not line.startswith("stag:")] + ["stag:x:4711:\n"])
    inside = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/group && exec "$@"', file]
    with lab.serve(Unit(memory=True), top={"managed": True}, inside=inside) as target:
        def ask(gid, method, path):
            """The status of HTTP. The capability leads to the socket, and the kernel tells the daemon the user and the group all the same."""
            words = ["setpriv", "--reuid=65534", f"--regid={gid}", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
            said = proc.run(*words, "curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--unix-socket", target.control,
                            "-X", method, "-H", "Content-Type: application/json", "-d", '{"all": true}' if method == "POST" else "",
                            f"http://stag{BASE}{path}", ok=None)
            return said.strip()
        asked = [("GET", "/status"), ("POST", "/drain"), ("POST", "/undrain"), ("DELETE", f"/targets/{IQN}"), ("POST", "/acknowledge")]
        expect([ask(4711, *request) for request in asked] == ["200", "200", "200", "403", "403"], f"{[ask(4711, *request) for request in asked]}")
        expect(all(ask(65534, *request) == "000" for request in asked), "a stranger is answered")


def roles(lab):
    """What each role may, and what a client without a token, with another Host or another method gets."""
    with managed(lab, Unit(memory=True)) as (_, api, token, _):
        asked = [("GET", "/status", None), ("POST", "/undrain", {"all": True}), ("DELETE", "/exports/%2Fa", None)]
        for number, role in enumerate(["metrics", "read", "operate"]):
            client = Api(api.port, token(role))
            for place, request in enumerate(asked):
                status = client.ask(*request)[0]
                expect((status == 403) == (place >= number), f"{role} {request}: {status}")
        for client in [Api(api.port, ""), Api(api.port, "stag_" + "0" * 64), Api(api.port, api.token[:-1])]:
            status, fields, said = client.ask("GET", "/status")
            expect(status == 401 and fields["WWW-Authenticate"].startswith("Bearer") and said["status"] == 401, f"{status} {said}")
        expect(api.ask("GET", "/status", Host="evil.example")[0] == 421, "a foreign Host is answered")
        status, fields, _ = api.ask("OPTIONS", "/targets", Origin="http://evil.example")
        expect(status == 405 and fields["Allow"] == "GET" and not any("access-control" in name.lower() for name in fields), f"{fields}")


def hostile(lab):
    """Clients that break every rule cost a connection each, of 64, and no memory; initiators and the API are served meanwhile."""
    with managed(lab, Unit(mib=16, memory=True)) as (target, api, _, _):
        def raw(request):
            connected = socket.create_connection(("127.0.0.1", api.port), timeout=60)
            with contextlib.suppress(OSError):
                connected.sendall(request)
            return connected

        def answer(request):
            data = b""
            with contextlib.closing(raw(request)) as connected, contextlib.suppress(OSError):
                while piece := connected.recv(65536):
                    data += piece
            return data

        head = f"PUT {BASE}/document HTTP/1.1\r\nHost: localhost\r\n".encode()
        known = head + f"Authorization: Bearer {api.token}\r\nContent-Type: application/json\r\n".encode()
        before = target.status("VmRSS")
        idle = [raw(b"") for _ in range(1000)]
        expect(api.ask("GET", "/status")[0] == 200, "a client is not served beside idle ones")
        # Without a token no body is read, however large it is said to be.
        greedy = [raw(head + b"Content-Length: 4000000\r\n\r\n" + b"x" * 100000) for _ in range(60)]
        smuggled = f"0\r\n\r\nDELETE {BASE}/targets/{IQN} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\n\r\n".encode()
        for request, statuses in [
                (head + b"Content-Length: 2\r\n\r\n{}", (b"401",)),
                (head + b"X: " + b"a" * MIB + b"\r\n\r\n", (b"431", b"")),
                (known + b"Content-Length: 5000000\r\n\r\n", (b"413",)),
                (known + b"Transfer-Encoding: chunked\r\n\r\n500000\r\n" + b" " * 0x500000 + b"\r\n0\r\n\r\n", (b"413", b"")),
                (known + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled, (b"400",)),
                (known + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + smuggled, (b"400",)),
                (known + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", (b"400",)),
                (known + b"Content-Length: 2\r\n\r\n{}" + smuggled[5:], (b"200",)),
                (known + b"Content-Length: 9\r\n\r\n{\"a\": [[[", (b"400",)),
                (known + b"Content-Length: 400000\r\n\r\n" + b"[" * 400000, (b"400",)),
                (known.replace(b"Host: localhost", b"Host: a\r\nHost: localhost") + b"Content-Length: 2\r\n\r\n{}", (b"421",)),
                (known.replace(b"Host: localhost\r\n", b"") + b"Content-Length: 2\r\n\r\n{}", (b"400",)),
                (known.replace(b"/document", b"/exports/%2F..%2F..%2Fetc%00") + b"Content-Length: 16\r\n\r\n{\"path\":\"mem:1M\"}", (b"422", b"409", b"400")),
                (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (b"400", b""))]:
            said = answer(request)
            expect(said[9:12] in statuses and said.count(b"HTTP/1.1 ") <= 1, f"{request[:200]!r} is answered with {said[:300]!r}")
        # Followers that read nothing: some have a stream, and are cut off; the others are refused.
        stuck = [socket.socket() for _ in range(1000)]
        for connected in stuck:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connected.connect(("127.0.0.1", api.port))
            connected.sendall(f"GET {BASE}/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\n\r\n".encode())
        expect(api.ask("GET", "/status")[0] == 200, "a client is not served beside followers")
        expect(api.follow().status == 503, "streams are not bounded")
        for _ in range(900):
            api.ask("DELETE", "/targets/" + "a" * 4000)
        proc.wait_until(lambda: api.follow().status == 200, 120, "followers that read nothing are cut off", 1)
        # A body that stops in its middle holds one connection, until its time is over.
        half = [raw(known + b"Content-Length: 1000\r\n\r\n{") for _ in range(8)]
        expect(api.ask("GET", "/status")[0] == 200, "a client is not served beside slow ones")
        with wire.session(target) as session:
            session.write(0, b"\xc3" * 4096)
            expect(session.read(0, 8) == b"\xc3" * 4096, "an initiator reads other data")
            session.logout()
        proc.wait_until(lambda: all(closed(connected) for connected in half), 60, "slow clients are closed")
        expect([one["iqn"] for one in api.done("GET", "/targets")] == [IQN], "what was smuggled was done")
        for connected in idle + greedy + half + stuck:
            connected.close()
        grown = (target.status("VmRSS") - before) / 1024
        expect(grown < 64, f"memory grew by {grown:.0f} MiB")


CASES = [
    ("openapi-spec-validator takes the document", validator),
    ("schemathesis finds nothing that the document does not say", fuzzed),
    ("QEMU uses a volume that the API makes, grows and removes", volumes),
    ("eight programs at once lose no update", together),
    ("events are followed, and go on after a cut", events),
    ("curl manages a daemon by its control socket", local),
    ("members of the group may operate by the control socket, strangers nothing", members),
    ("roles, tokens, Host and methods", roles),
    ("hostile HTTP is refused and bounded", hostile),
    ("over TLS curl and OpenSSL get answers, renewed certificates are taken", encrypted),
]
