"""Metrics and health over HTTP: what other programs make of them, and what hostile clients of theirs can do.

No time is judged. One is compared with what `stag bench` measured meanwhile, by a factor of ten: buckets are that coarse.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from lab import nfs, proc, wire
from lab.failing import FailingFile
from lab.report import Failed, Skip, expect
from lab.target import IQN, Stag, Unit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ALERTS = os.path.join(ROOT, "dist/prometheus/alerts.yml")
MIB = 1 << 20


@contextlib.contextmanager
def observed(lab, *units, more=()):
    """A target, and the port where it answers HTTP."""
    if lab.kind != "stag":
        raise Skip("stag's own metrics")
    port = proc.free_port()
    with lab.serve(*units, more=["[http]", f'listen = "127.0.0.1:{port}"', *more]) as target:
        yield target, port


def fetch(port, path="/metrics", accept="", timeout=60):
    """What is answered, and its media type. Counters are left out of metrics while a core does not answer, as on a busy machine."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept} if accept else {})
    deadline = time.monotonic() + 10
    while True:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text, kind = answer.read().decode(), answer.headers["Content-Type"]
        if path != "/metrics" or "stag_unit_commands" in text or time.monotonic() > deadline:
            return text, kind
        time.sleep(0.2)


def value(text, name, **labels):
    """The value of one series."""
    for line in text.splitlines():
        series, _, number = line.rpartition(" ")
        base, _, rest = series.partition("{")
        if base == name and all(f'{key}="{value}"' in rest for key, value in labels.items()):
            return float(number)
    raise Failed(f"no {name} {labels} in\n{proc.tail(text, 40)}")


@contextlib.contextmanager
def load(target, *words):
    """`stag bench` in the background, for a minute at most; what it has measured is in the list once the block has ended."""
    measured = []
    process = subprocess.Popen([Stag.binary, "bench", target.urls[0], "--json", "--time", "60", *words],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process, measured
        process.send_signal(2)
        out, error = process.communicate(timeout=60)
        expect(out, f"stag bench said nothing: {error}")
        measured.append(json.loads(out)["runs"][0])
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def busy(lab):
    """Units of all kinds, and an export, for `every_outcome`; and the port of NFS."""
    folder, port = lab.new_folder("export"), proc.free_port()
    return [Unit(mib=16, thin=True), Unit(mib=16, memory=True), Unit(mib=16, objects=True)], [
        "[nfs]", f'listen = "127.0.0.1:{port}"', "[[export]]", 'name = "/data"', f'path = "{folder}"'], port


def every_outcome(target, files):
    """A write and two commands that no unit has; a file's attributes, and a name that no file has."""
    with wire.session(target) as session:
        session.write(0, b"\x5a" * 4096)
        for _ in range(2):
            expect(session.run(bytes([0xC7] + [0] * 15))[0] == 2, "a command that no unit has was executed")
        session.logout()
    client = nfs.Three("127.0.0.1", files)
    root, _ = client.mount("/data")
    client.getattr(root)
    expect(nfs.status_of(client.lookup, root, b"nothing") == 2, "LOOKUP found nothing's file")
    client.close()


def promtool(lab):
    """Names, kinds, units and help are as Prometheus's own rules want them."""
    proc.need("promtool")
    units, more, files = busy(lab)
    with observed(lab, *units, more=more) as (target, port):
        every_outcome(target, files)
        text, kind = fetch(port)
        expect(kind == "text/plain; version=0.0.4; charset=utf-8", kind)
        said = proc.run("promtool", "check", "metrics", stdin=text.encode(), ok=None)
        expect(said.code == 0 and not said.strip(), f"promtool check metrics: {said.code}\n{said}")
        expect(value(text, "stag_unit_commands_total", lun="0", operation="write") >= 1, "the write was not counted")
        expect(value(text, "stag_target_commands_total", status="check-condition", sense_key="illegal-request") == 2, "two were illegal")
        expect(value(text, "stag_nfs_operations_total", version="3", operation="getattr", outcome="done") == 1, "one GETATTR was done")
        expect(value(text, "stag_nfs_operations_total", version="3", operation="lookup", outcome="refused") == 1, "one LOOKUP found nothing")
        expect(value(text, "stag_export_calls_total", export="/data") == 2, "one has called twice")


PARSER = """
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = list(text_string_to_metric_families(sys.stdin.read()))
for family in families:
    print(family.name, family.type, family.unit, len(family.samples))
"""


def openmetrics(lab):
    """prometheus_client's parser of OpenMetrics is strict: it refuses what the specification does."""
    python = "/usr/bin/python3"
    if proc.run(python, "-c", "import prometheus_client.openmetrics.parser", ok=None).code:
        raise Skip("python3-prometheus-client not installed (tests/install-peers installs it)")
    units, more, files = busy(lab)
    with observed(lab, *units, more=more) as (target, port):
        every_outcome(target, files)
        text, kind = fetch(port, accept="application/openmetrics-text; version=1.0.0")
        expect(kind == "application/openmetrics-text; version=1.0.0; charset=utf-8", kind)
        said = proc.run(python, "-c", PARSER, stdin=text.encode(), ok=None)
        expect(said.code == 0, f"{proc.tail(said)}")
        for family in ["stag_unit_commands counter", "stag_build info", "stag_command_duration_seconds histogram seconds",
                       "process_cpu_seconds counter seconds", "stag_unit_transferred_bytes counter bytes", "stag_target_commands counter",
                       "stag_nfs_operations counter", "stag_command_stage_seconds histogram seconds", "stag_target_limit_wait_seconds counter seconds"]:
            expect(family in said, f"{family} is not in\n{said}")
        # The parser finds a fault where there is one.
        spoilt = text.replace("# EOF", "")
        expect(proc.run(python, "-c", PARSER, stdin=spoilt.encode(), ok=None).code != 0, "the parser takes everything")


SAMPLES = """
import json, sys
from prometheus_client.parser import text_string_to_metric_families
families = text_string_to_metric_families(sys.stdin.read())
print(json.dumps([[sample.name, sample.labels, sample.value] for family in families for sample in family.samples]))
"""


def stages_of_units(lab):
    """prometheus_client reads the stages of a unit whose configuration asks for them, from one `stag apply` to the next, and of no other unit."""
    python = "/usr/bin/python3"
    if proc.run(python, "-c", "import prometheus_client.parser", ok=None).code:
        raise Skip("python3-prometheus-client not installed (tests/install-peers installs it)")

    def read(port):
        """The samples of stag_unit_stage_seconds, each as its name, its labels and its value."""
        said = proc.run(python, "-c", SAMPLES, stdin=fetch(port)[0].encode())
        return [sample for sample in json.loads(said) if sample[0].startswith("stag_unit_stage_seconds")]

    def count(found, lun, operation, stage, name="count"):
        return sum(value for sample, labels, value in found if sample == f"stag_unit_stage_seconds_{name}" and labels["target"] == IQN
                   and (labels["lun"], labels["operation"], labels["stage"]) == (lun, operation, stage))

    with observed(lab, Unit(mib=16, memory=True), Unit(mib=16, memory=True, options="stages")) as (target, port):
        with wire.session(target) as session:
            def write(times):
                for lun in 0, 1:
                    session.test_unit_ready(lun=lun)
                    for _ in range(times):
                        session.write(0, b"\x5a" * 4096, lun=lun)

            write(80)
            # One command in eight, of 80 writes and of what came before them.
            [found] = proc.wait_until(lambda: [one for one in [read(port)] if count(one, "1", "write", "send") >= 9], 60, "the stages are told")
            expect({labels["lun"] for _, labels, _ in found} == {"1"}, f"others' stages are told: {found}")
            for stage in "order", "data", "medium":
                expect(9 <= count(found, "1", "write", stage) <= 11, f"80 writes, and of {stage}: {found}")
            ends = [(labels["le"], value) for sample, labels, value in found if sample.endswith("_bucket")
                    and (labels["operation"], labels["stage"]) == ("write", "medium")]
            values = [value for _, value in ends]
            expect(ends[-1][0] == "+Inf" and values == sorted(values) and values[-1] == count(found, "1", "write", "medium"), f"buckets: {ends}")
            expect(count(found, "1", "write", "medium", "sum") > 0, f"no time: {found}")

            target.units[0].options, target.units[1].options = "stages", ""
            document = os.path.join(target.folder, "stag.toml")
            with open(document, "w", encoding="utf-8") as file:
                file.write(target.config())
            said = json.loads(proc.run(Stag.binary, "apply", "--json", "--control", target.control, document))
            expect(said["applied"] and said["sessions_changed"] == 0, f"apply says {said}")
            write(80)
            [found] = proc.wait_until(lambda: [one for one in [read(port)] if count(one, "0", "write", "send") >= 9], 60, "the other's are told")
            expect({labels["lun"] for _, labels, _ in found} == {"0"}, f"a unit without the option is told: {found}")
            expect(9 <= count(found, "0", "write", "medium") <= 11, f"what came before it was asked for is counted: {found}")
            session.logout()


@contextlib.contextmanager
def prometheus(lab, port):
    """A Prometheus that scrapes each second, with Stag's alerts; asks it."""
    proc.need("prometheus")
    folder, own = lab.new_folder("prometheus"), proc.free_port()
    config = os.path.join(folder, "prometheus.yml")
    with open(config, "w", encoding="utf-8") as file:
        file.write(f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{json.dumps(ALERTS)}]\nscrape_configs:\n"
                   f"  - job_name: stag\n    static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n")
    with open(os.path.join(folder, "log"), "wb") as log:
        process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                                    f"--web.listen-address=127.0.0.1:{own}"], stdout=log, stderr=log)

    def ask(query):
        try:
            text, _ = fetch(own, "/api/v1/query?" + urllib.parse.urlencode({"query": query}))
        except (OSError, urllib.error.URLError):
            return []
        return json.loads(text)["data"]["result"]
    try:
        yield ask
    finally:
        proc.end(process)


def quantiles(lab):
    """Large writes, one at a time: waiting for their data is most of what they take, here as there."""
    units = [Unit(mib=16, memory=True)]
    with observed(lab, *units) as (target, port), load(target, "--depth", "1", "--bs", "1M", "--pattern", "write", "--destroy") as (bench, measured), prometheus(lab, port) as ask:
        query = f'histogram_quantile(0.5, sum by (le) (rate(stag_command_duration_seconds_bucket{{target="{IQN}"}}[30s])))'

        def answered():
            expect(bench.poll() is None, "stag bench has ended")
            counted = ask('sum(increase(stag_unit_commands_total{operation="write"}[30s])) > 100')
            found = ask(query) if counted else []
            return float(found[0]["value"][1]) if found and found[0]["value"][1] != "NaN" else None

        half = proc.wait_until(answered, 50, "Prometheus answers")
        expect(ask("up{job='stag'} == 1"), "the scrape failed")
        expect(not ask("ALERTS{alertname='StagDown'}"), "an alert of a daemon that is up")
    bench_half = measured[0]["lat_us"]["p50"] / 1e6
    expect(bench_half / 10 < half < bench_half * 10, f"histogram_quantile says {half} s, stag bench {bench_half} s")


# For each alert: series that it is for, and those that it must leave alone. `promtool test rules` notation.
FIRES = {
    "StagDown": ('up{job="stag",instance="a"}', "0x40"),
    "StagCoreSilent": ('stag_core_up{core="1",instance="a"}', "0x40"),
    "StagUnitFailed": ('stag_unit_state{target="t",lun="0",instance="a"}', "2x40"),
    "StagUnitDegraded": ('stag_unit_state{target="t",lun="1",instance="a"}', "1x40"),
    "StagExportFailed": ('stag_export_state{export="/a",instance="a"}', "2x40"),
    "StagExportDegraded": ('stag_export_state{export="/b",instance="a"}', "1x40"),
    "StagFileSystemFull": ('stag_file_system_state{mount="/a",instance="a"}', "2x40"),
    "StagFileSystemNearlyFull": ('stag_file_system_state{mount="/b",instance="a"}', "1x40"),
    "StagHealth": ('stag_health_state{instance="b"}', "2x40"),
    "StagDigestErrors": ("stag_digest_errors_total{instance=\"a\"}", "0+1x40"),
    "StagCoreBusy": ('stag_core_busy_seconds_total{core="0",instance="a"}', "0+60x40"),
    "StagCoreStalls": ('stag_core_stall_seconds_total{core="0",instance="a"}', "0+12x40"),
    "StagLimited": ('stag_target_limit_wait_seconds_total{target="t",instance="a"}', "0+300x40"),
    "StagNfsFailing": ('stag_nfs_operations_total{version="3",operation="write",outcome="failed",instance="a"}', "0+1x40"),
    "StagGatewayMissing": ('stag_gateway_member_state{gateway="2",instance="a"}', "2x40"),
    "StagGatewayLinkDown": ('stag_gateway_link_up{gateway="2",instance="a"}', "0x40"),
    "StagGatewayTakeovers": ('stag_gateway_takeovers_total{instance="a"}', "0+1x40"),
    "StagBufferPoolShort": ('stag_pool_waits_total{core="0",instance="a"}', "0+600x40"),
}
QUIET = [('up{job="stag",instance="b"}', "1x40"), ('stag_core_up{core="0",instance="a"}', "1x40"),
         ('stag_unit_state{target="t",lun="2",instance="a"}', "0x40"), ('stag_export_state{export="/c",instance="a"}', "0x40"),
         ('stag_file_system_state{mount="/c",instance="a"}', "0x40"),
         ('stag_target_limit_wait_seconds_total{target="u",instance="a"}', "0+6x40"),
         ('stag_nfs_operations_total{version="3",operation="lookup",outcome="refused",instance="a"}', "0+9x40"),
         ('stag_gateway_member_state{gateway="3",instance="a"}', "1x40"), ('stag_gateway_link_up{gateway="3",instance="a"}', "1x40"),
         ('stag_gateway_takeovers_total{instance="b"}', "3x40"),
         ('stag_health_state{instance="a"}', "2x40"), ('stag_core_busy_seconds_total{core="1",instance="a"}', "0+6x40"),
         ('stag_core_stall_seconds_total{core="1",instance="a"}', "0+1x40")]


def of_a_stage(stage, target):
    """A target's commands of which one in ten took no longer than 17 ms in a stage, and none longer than 1.1 s."""
    return [(f'stag_command_stage_seconds_bucket{{target="{target}",stage="{stage}",operation="read",instance="a",le="{le}"}}', f"0+{more}x40")
            for le, more in [("0.016777216", 10), ("1.073741824", 100), ("+Inf", 100)]]


# Of several series each.
TOGETHER = {
    "StagSlowMedium": of_a_stage("medium", "t"),
    "StagSlowInitiators": [*of_a_stage("send", "u"), *of_a_stage("order", "v")],
    "StagSlowCommands": [('stag_command_duration_seconds_bucket{target="t",lun="9",instance="a",le="0.016777216"}', "0+10x40"),
                         ('stag_command_duration_seconds_bucket{target="t",lun="9",instance="a",le="1.073741824"}', "0+100x40"),
                         ('stag_command_duration_seconds_bucket{target="t",lun="9",instance="a",le="+Inf"}', "0+100x40")],
    "StagFailedCommands": [('stag_unit_failed_commands_total{target="t",lun="9",instance="a"}', "0+10x40"),
                           ('stag_unit_commands_total{target="t",lun="9",instance="a",operation="read"}', "0+100x40")],
    "StagDescriptorsShort": [('process_open_fds{job="stag",instance="a"}', "95x40"), ('process_max_fds{job="stag",instance="a"}', "100x40")],
    "StagFileSystemFullSoon": [('stag_file_system_overcommitted_bytes{mount="/d",instance="a"}', "9x40"),
                               ('stag_file_system_free_bytes{mount="/d",instance="a"}', "1000-10x40")],
}


def alerts(lab):
    """Every alert fires on what it is for, once, and no other does."""
    if lab.kind != "stag":
        raise Skip("stag's own alerts")
    proc.need("promtool")
    said = proc.run("promtool", "check", "rules", ALERTS, ok=None)
    expect(said.code == 0, said)
    names = [line.split(":")[1].strip() for line in open(ALERTS, encoding="utf-8") if "- alert:" in line]
    expect(sorted(names) == sorted([*FIRES, *TOGETHER]), f"alerts without a test, or tests without one: {names}")
    series = [*FIRES.values(), *QUIET, *[one for group in TOGETHER.values() for one in group]]
    # Each as many times as it has to, by the number of alerts with its name at the end.
    tests = [{"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})', "eval_time": "35m",
              "exp_samples": [{"labels": "{}", "value": 1}]} for name in names]
    rules = {"rule_files": [ALERTS], "evaluation_interval": "1m", "tests": [
        {"interval": "1m", "input_series": [{"series": name, "values": values} for name, values in series],
         "promql_expr_test": tests}]}
    path = os.path.join(lab.new_folder("alerts"), "test.yml")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(rules, file)
    said = proc.run("promtool", "test", "rules", path, ok=None)
    expect(said.code == 0, proc.tail(said, 40))


def hostile(lab):
    """Clients that break every rule cost a connection each, of 64; initiators are served meanwhile."""
    with observed(lab, Unit(mib=16, memory=True)) as (target, port):
        def connect():
            return socket.create_connection(("127.0.0.1", port), timeout=60)

        def answer(connected):
            data = b""
            with contextlib.suppress(OSError):
                while piece := connected.recv(65536):
                    data += piece
            return data

        fetch(port)
        before = target.status("VmRSS")
        with wire.session(target) as session:
            session.write(0, b"\xc3" * 4096)
            idle = [connect() for _ in range(1000)]
            expect(session.read(0, 8) == b"\xc3" * 4096, "an initiator reads other data")
            expect("stag_build_info" in fetch(port)[0], "a client is not served beside idle ones")
            descriptors = len(os.listdir(f"/proc/{target.pid}/fd"))
            expect(descriptors < 300, f"{descriptors} descriptors with 1,000 idle clients")
            # Slow heads: a byte now and then.
            slow = [connect() for _ in range(64)]
            for connected in slow:
                with contextlib.suppress(OSError):
                    connected.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            for request, statuses in [
                    (b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: " + b"a" * MIB + b"\r\n\r\n", (b"431", b"")),
                    (b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                     b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", (b"400",)),
                    (b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", (b"400",)),
                    (b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", (b"405",)),
                    (b"\x00" * 4096, (b"400", b""))]:
                connected = connect()
                with contextlib.suppress(OSError):
                    connected.sendall(request)
                said = answer(connected)
                status = said[9:12]
                expect(status in statuses and said.count(b"HTTP/1.1 ") <= 1, f"{request[:60]!r} is answered with {said[:200]!r}")
            # A client that does not read what it asked for.
            deaf = [connect() for _ in range(100)]
            for connected in deaf:
                with contextlib.suppress(OSError):
                    connected.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            expect(session.read(0, 8) == b"\xc3" * 4096, "an initiator reads other data")
            expect("stag_build_info" in fetch(port)[0], "a client is not served beside deaf ones")
            # Whoever never asks is closed: the head of a slow one has not come in time.
            proc.wait_until(lambda: all(closed(connected) for connected in slow), 60, "slow clients are closed")
            session.logout()
        for connected in idle + slow + deaf:
            connected.close()
        grown = (target.status("VmRSS") - before) / 1024
        expect(grown < 64, f"memory grew by {grown:.0f} MiB")


def closed(connected):
    """Whether the other side has closed it."""
    connected.setblocking(False)
    try:
        return connected.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def health(lab):
    """A unit whose file has shrunk turns /healthz to 503, and its state to failed."""
    if os.geteuid() != 0:
        raise Skip("a file system of its own, half full, needs root")
    # The file system of the machine's own files may be full enough for a warning.
    path = os.path.join(lab.new_folder("half-full"), "unit.img")
    with FailingFile(path, 16 * MIB), observed(lab, Unit(path=path)) as (target, port):
        text, kind = fetch(port, "/healthz")
        expect(text.startswith("OK: no problems") and kind.startswith("text/plain"), text)
        expect(fetch(port, "/readyz")[0] == "ready\n", "not ready")
        os.truncate(path, 8 * MIB)
        with wire.session(target) as session:
            session.run(struct.pack(">BBIBHB", 0x28, 0, 30000, 0, 8, 0), 4096)
            session.logout()

        def ill():
            try:
                fetch(port, "/healthz")
                return None
            except urllib.error.HTTPError as error:
                return (error.code, error.read().decode())
        code, text = proc.wait_until(ill, 60, "the shrunk file is noticed")
        expect(code == 503 and text.startswith("CRITICAL: "), f"{code}: {text}")
        said = proc.run(Stag.binary, "status", "--check", "--control", target.control, ok=None)
        expect(said.code == 2, f"status --check ends with {said.code}")
        text, _ = fetch(port)
        expect(value(text, "stag_unit_state", lun="0") == 2 and value(text, "stag_health_state") == 2, proc.tail(text))
        expect(fetch(port, "/readyz")[0] == "ready\n", "it still serves")


def slow(lab):
    """Where time goes: QEMU's writes to a unit with a limit, and a write whose data do not come."""
    proc.need("qemu-io")
    with observed(lab, Unit(memory=True, options="iops=20,burst=0"), Unit(memory=True)) as (target, port):
        def told(lun):
            said = proc.run(Stag.binary, "slow", "--json", "--most", "200", "--control", target.control)
            return [one for one in json.loads(said) if one["lun"] == lun and one["operation"] == "write"]

        proc.run("qemu-io", "-f", "raw", *[word for _ in range(16) for word in ("-c", "write 0 4k")], target.urls[0])
        # On a machine that is busy otherwise, one may be slow for another reason.
        found = [one for one in told(0) if one["order_s"] >= 0.01 and one["order_s"] > one["medium_s"] + one["data_s"]]
        expect(len(found) >= 10, f"the limit took the time of few of QEMU's writes: {told(0)}")
        for one in found:
            expect("linux-kvm" in one["initiator"] and one["target"] == IQN and one["cdb"][:2] in ("2a", "8a", "aa"), f"another's: {one}")
            expect(one["state"] == "ended", f"it has ended: {one}")
        text, _ = fetch(port)
        spent = {stage: value(text, "stag_command_stage_seconds_sum", operation="write", stage=stage) for stage in ("order", "medium", "send")}
        expect(spent["order"] >= 0.01 and spent["order"] > spent["medium"], f"the histogram of QEMU's writes: {spent}")
        expect(value(text, "stag_target_limit_waits_total") >= 10, "the waits were not counted")

        with wire.session(target) as session:
            data = b"\x3c" * 4096
            session.test_unit_ready(lun=1)
            tag = session.tag()
            session.send(*session.command_pdu(struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 8, 0), len(data), True, tag, lun=1))
            asked = session.receive()
            expect(asked.opcode == wire.R2T, f"no R2T: {asked}")
            held = proc.wait_until(lambda: told(1), 60, "the write without data is told")
            expect(len(held) == 1 and held[0]["state"] == "data" and held[0]["took_s"] >= 1, f"{held}")
            shown = proc.run(Stag.binary, "slow", "--control", target.control)
            expect("STILL IN DATA" in shown and "iqn.2026-01.example.lab:wire" in shown, shown)
            session.send_data(tag, asked.target_tag, 0, data)
            expect(session.answer(tag)[0] == 0, "the write failed")
            session.test_unit_ready(lun=1)
            [ended] = told(1)
            expect(ended["state"] == "ended" and ended["data_s"] >= 1 and ended["data_s"] > ended["medium_s"], f"{ended}")
            expect(ended["itt"] == tag and ended["send_s"] is not None, f"its status was acknowledged: {ended}")
            session.logout()


def many_scrapers(lab):
    """However many ask, cores are asked once a second, and counters never fall."""
    with observed(lab, Unit(mib=16, memory=True)) as (target, port), load(target, "--depth", "4", "--bs", "4k") as (bench, _):
        fallen, end = [], time.monotonic() + 5

        def scrape():
            last = 0
            while time.monotonic() < end:
                now = value(fetch(port)[0], "stag_unit_commands_total", lun="0", operation="read")
                if now < last:
                    fallen.append((last, now))
                last = now
        threads = [threading.Thread(target=scrape) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expect(not fallen, f"counters fell: {fallen}")
        expect(bench.poll() is None, "stag bench has ended")


def held_up(lab):
    """A core that is held up is told: a stopped process stands for a call that blocks, where it stops in the middle of a turn."""
    with observed(lab, Unit(mib=16, memory=True)) as (target, port), load(target, "--depth", "32", "--bs", "4k"):
        held = lambda: value(fetch(port)[0], "stag_core_stall_seconds_total", core="0")
        before = held()

        def told():
            proc.freeze(target.process)
            time.sleep(0.2)
            target.process.send_signal(signal.SIGCONT)
            return held() - before >= 0.2

        proc.wait_until(told, 60, "a stall of 0.2 s is counted", step=1)
        said = proc.run(Stag.binary, "status", "--control", target.control)
        expect("stalls of 1 ms and more" in said, f"stag status does not tell of it: {said}")


CASES = [
    ("promtool: the text is as Prometheus wants it", promtool),
    ("prometheus_client reads it as OpenMetrics", openmetrics),
    ("prometheus_client reads the stages of units that ask for it", stages_of_units),
    ("promtool: every alert fires on what it is for", alerts),
    ("a Prometheus answers quantiles near those of stag bench", quantiles),
    ("stag slow tells a limit, the initiator and the medium apart", slow),
    ("a core that is held up is told", held_up),
    ("health and readiness", health),
    ("many scrapers at once: counters never fall", many_scrapers),
    ("hostile HTTP is refused and bounded under I/O", hostile),
]
