"""The container image, as Podman loads and runs it, and the Kubernetes manifests: their schemas, and the pod that Podman makes of them."""

import glob
import json
import os
import re
import subprocess
import tarfile
import urllib.request

from lab import proc, sbom, tools
from lab.podman import Podman
from lab.report import Skip, expect
from lab.target import Stag
from peers.package import ROOT, digest

KUBERNETES = os.path.join(ROOT, "dist/kubernetes")
SECCOMP = os.path.join(KUBERNETES, "seccomp.json")
CALLS = os.path.join(ROOT, "crates/cli/stag/src/sandbox/calls.rs")
IQN = "iqn.2026-01.org.example:disks"
URL = f"iscsi://127.0.0.1:3260/{IQN}/0"
IMAGE = "localhost/stag"
CLOSED = ["--cap-drop", "all", "--read-only", "--security-opt", "no-new-privileges"]
LIBRARIES = ("libc6", "libgcc-s1")


def in_podman(lab):
    """Each step counts as a case."""
    folder = os.path.join(lab.folder, "image")
    os.makedirs(folder)
    state = {}

    def podman(*words, **options):
        return state["podman"].run(*words, **options)

    def build(where):
        proc.run(os.path.join(ROOT, "dist/image"), "--program", state["program"], os.path.join(folder, where), timeout=300)
        return glob.glob(os.path.join(folder, where, "*.image.tar"))[0]

    def prepare():
        if lab.kind != "stag":
            raise Skip("stag's own image")
        proc.need("qemu-io", "objcopy", "strip", "dpkg-query")
        state["podman"] = Podman(folder)
        state["program"] = os.path.join(folder, "stag")
        subprocess.run(["objcopy", "--strip-debug", Stag.binary, state["program"]], check=True)
        state["file"] = build("first")
        expect(digest(state["file"]) == digest(build("again")), "two images of one program differ")
        podman("load", "--input", state["file"])
        told = json.loads(podman("image", "inspect", f"{IMAGE}:{version()}"))[0]
        # The id of an image is the digest of its configuration.
        with tarfile.open(state["file"]) as archive:
            config = json.load(archive.extractfile("manifest.json"))[0]["Config"]
        expect(told["Id"] + ".json" == config and told["User"] == "65532:65532", told)

    def version():
        return proc.run(state["program"], "--version").split()[1]

    def contents():
        with tarfile.open(state["file"]) as archive, tarfile.open(fileobj=archive.extractfile("layer.tar")) as layer:
            files = {file.name[1:]: file for file in layer if file.isfile()}
            # The program of a release has 21.1 MB. The image is less than 25 MB, and half of that
            # as a registry keeps it.
            others = sum(file.size for name, file in files.items() if name != "/usr/bin/stag")
            expect(others < 3_900_000, f"{others} bytes beside the program")
            programs = [name for name, file in files.items() if file.mode & 0o111 and "/lib" not in name]
            expect(programs == ["/usr/bin/stag"], f"programs: {programs}")
            wild = [name for name, file in files.items() if file.mode & 0o7022]
            expect(not wild, f"others may write to, or run as others: {wild}")
            text = layer.extractfile("./usr/share/doc/stag/stag.spdx.json").read()
            for library in LIBRARIES:
                expect(f"/usr/share/doc/{library}/copyright" in files, f"no licence of {library}")
        sbom.check(text, LIBRARIES)
        sbom.spoiled(text)

    def started(*words):
        podman("run", "--detach", "--name", "one", *CLOSED, *words, f"{IMAGE}:{version()}", "serve", "--iqn", IQN, "/var/lib/stag/disk.img,size=64M")
        wait_for("one")

    def wait_for(container):
        def answers():
            expect(podman("inspect", "--format", "{{.State.Running}}", container).strip() == "true", podman("logs", container))
            return podman("exec", container, "/usr/bin/stag", "status", "--check", ok=None).code == 0

        proc.wait_until(answers, 60, "it serves")

    def serves():
        started("--security-opt", f"seccomp={SECCOMP}", "--volume", "state:/var/lib/stag")
        proc.run("qemu-io", "-f", "raw", "-c", "write -P 7 0 1M", "-c", "read -P 7 0 1M", URL)
        podman("healthcheck", "run", "one")
        expect("runs on epoll" not in podman("exec", "one", "/usr/bin/stag", "status"), "the profile forbids io_uring")
        status = proc.run("cat", f"/proc/{podman('inspect', '--format', '{{.State.Pid}}', 'one').strip()}/status")
        for name, value in (("Uid", "65532"), ("CapEff", "0000000000000000"), ("NoNewPrivs", "1"), ("Seccomp", "2")):
            expect(re.search(rf"^{name}:\s+{value}\b", status, re.M), f"{name} is not {value}:\n{status}")
        # All of its own walls stand inside.
        expect('walls="landlock, seccomp"' in podman("logs", "one"), "the daemon's sandbox")

    def killed():
        podman("kill", "--signal", "KILL", "one")
        proc.wait_until(lambda: podman("inspect", "--format", "{{.State.Running}}", "one").strip() == "false", 30, "it is dead")
        podman("start", "one")
        wait_for("one")
        proc.run("qemu-io", "-f", "raw", "-c", "read -P 7 0 1M", URL)
        podman("stop", "one")
        expect(podman("inspect", "--format", "{{.State.ExitCode}}", "one").strip() == "0", podman("logs", "one"))
        podman("rm", "one")

    def allowed():
        with open(SECCOMP) as file:
            names = set(json.load(file)["syscalls"][0]["names"])
        with open(CALLS) as file:
            own = set(re.findall(r"\bSYS_(\w+)", file.read()))
        expect(len(own) > 150 and own <= names, f"not allowed: {own - names}")

    def schemas():
        for path in manifests():
            command, env = tools.python("kubernetes-validate", "--strict", path)
            proc.run(*command, env=env)
            with open(path) as file:
                spoiled = os.path.join(folder, os.path.basename(path))
                text = file.read()
            with open(spoiled, "w") as file:
                file.write(text.replace("accessModes", "accesModes"))
            command, env = tools.python("kubernetes-validate", "--strict", spoiled)
            expect(proc.run(*command, ok=None, env=env).code != 0, f"{path}: a spoiled one is valid")

    def pod():
        """Podman knows no StatefulSet: it gets the pod of its template."""
        yaml = tools.python_package("yaml")
        with open(os.path.join(KUBERNETES, "stag.yaml")) as file:
            documents = [document for document in yaml.safe_load_all(file) if document["kind"] != "Service"]
        template = documents.pop()["spec"]["template"]
        container = template["spec"]["containers"][0]
        container["image"] = f"{IMAGE}:{version()}"
        # Of these Podman would make a check of health that runs curl in the container.
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            check = container.pop(probe)["httpGet"]
        del container["ports"]  # It does not map them on the host's network.
        expect(template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, "not Podman's default profile")
        template["metadata"]["name"] = "stag-0"
        documents.append({"apiVersion": "v1", "kind": "Pod", **template})
        path = os.path.join(folder, "pod.yaml")
        with open(path, "w") as file:
            yaml.safe_dump_all(documents, file)
        podman("kube", "play", path)
        wait_for("stag-0-stag")
        with urllib.request.urlopen(f"http://{check['host']}:{check['port']}{check['path']}", timeout=60) as answer:
            expect(answer.status == 200, answer.status)
        # What volumes.yaml says of it is so.
        with open(os.path.join(KUBERNETES, "volumes.yaml")) as file:
            volumes = {kind: document["spec"][kind] for document in yaml.safe_load_all(file) for kind in ("iscsi", "nfs") if kind in document["spec"]}
        disk = f"iscsi://127.0.0.1:{volumes['iscsi']['targetPortal'].split(':')[1]}/{volumes['iscsi']['iqn']}/{volumes['iscsi']['lun']}"
        proc.run("qemu-io", "-f", "raw", "-c", "write -P 9 0 1M", "-c", "read -P 9 0 1M", disk)
        file = f"nfs://127.0.0.1{volumes['nfs']['path']}/note"
        proc.run(Stag.binary, "write", file, stdin=b"two")
        expect(proc.run(Stag.binary, "cat", file) == "two", "another text")
        told = json.loads(podman("inspect", "stag-0-stag"))[0]
        # That profile forbids io_uring.
        expect("runs on epoll" in podman("exec", "stag-0-stag", "/usr/bin/stag", "status"), "it runs on io_uring")
        expect(told["HostConfig"]["ReadonlyRootfs"] and "no-new-privileges" in told["HostConfig"]["SecurityOpt"], told["HostConfig"])
        podman("kube", "down", path)

    def manifests():
        return sorted(glob.glob(os.path.join(KUBERNETES, "*.yaml")))

    try:
        if lab.case("dist/image packs the program: the same image twice, of an ordinary user", prepare):
            lab.case("it has the program and its libraries; its list of parts is SPDX", contents)
            lab.case("the seccomp profile allows what the daemon's own filter allows", allowed)
            if lab.case("read-only and without capabilities it serves QEMU, and is healthy", serves):
                lab.case("after kill -9 it serves what its volume has, and it stops in order", killed)
            lab.case("the Kubernetes manifests follow their schemas", schemas)
            lab.case("Podman plays the manifest's pod: probes, disk and export as in volumes.yaml", pod)
    finally:
        if "podman" in state:
            state["podman"].end()


in_podman.adds_its_own = True

CASES = [("the image in Podman", in_podman)]
