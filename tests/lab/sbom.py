"""Lists of parts (SPDX), as spdx-tools reads them: a program that others wrote."""

import json
import os
import tempfile
import tomllib

from . import proc, tools
from .report import expect

LOCK = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "Cargo.lock")


def judged(document):
    """What spdx-tools says of it."""
    command, env = tools.python("pyspdxtools")
    with tempfile.NamedTemporaryFile("w", suffix=".spdx.json") as file:
        json.dump(document, file)
        file.flush()
        return proc.run(*command, "--infile", file.name, ok=None, env=env)


def check(text, libraries=()):
    """The document is valid, and its crates are Cargo.lock's, the program and these Debian packages among them."""
    document = json.loads(text)
    said = judged(document)
    expect(said.code == 0, f"spdx-tools:\n{proc.tail(said)}")
    with open(LOCK, "rb") as file:
        locked = {(package["name"], package["version"]): package.get("checksum") for package in tomllib.load(file)["package"]}
    names = set()
    for package in document["packages"]:
        names.add(package["name"])
        if package["name"] in libraries:
            continue
        sums = [checksum["checksumValue"] for checksum in package.get("checksums", [])]
        expect(sums == [one for one in [locked[package["name"], package["versionInfo"]]] if one], f"not as locked: {package}")
        expect(package["licenseDeclared"] != "NOASSERTION", f"no licence: {package}")
    # One that ships, and two that do not: of the lab, and of tests.
    expect({"stag", "iscsi", "rustix", *libraries} <= names and not {"lab", "resvg", "proptest"} & names, f"parts: {sorted(names)}")


def spoiled(text):
    """The validator finds a document wrong whose licence is none, and one that names a part that is not there."""
    for spoil in (lambda document: document["packages"][1].update(licenseDeclared="A licence of nobody's"),
                  lambda document: document["relationships"][1].update(relatedSpdxElement="SPDXRef-nothing")):
        document = json.loads(text)
        spoil(document)
        expect(judged(document).code != 0, "a spoiled document is valid")
