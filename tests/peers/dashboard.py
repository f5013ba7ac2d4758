"""The dashboard in a browser: headless Chromium does the tasks that people open it for, axe finds no violation of WCAG 2.1 A and AA, and the
console stays empty. Chromium is driven by the W3C's WebDriver protocol, which needs no library.

No time is judged.
"""

import base64
import contextlib
import glob
import http.client
import http.server
import json
import os
import re
import subprocess
import tempfile
import threading
import time

from lab import proc, tools, wire
from lab.report import Failed, expect
from lab.target import IQN, Stag, Unit

from .api import managed

OWN = "iqn.2026-01.org.example:browser"
CLIENT = "iqn.2026-01.org.example:client"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
PATHS = ["/", "/targets", f"/targets/{IQN}", f"/targets/{IQN}/units/0", "/exports", "/clients", "/slow", "/drains", "/changes", "/support",
         "/change/disk", "/change/export", "/change/drain"]
# Widths of windows, and whether people prefer dark colours.
WINDOWS = [(1440, False), (768, True), (390, True)]


class Browser:
    """A window of Chromium (W3C WebDriver)."""

    def __init__(self, base, script=True, width=1280, dark=False):
        proc.need("chromedriver", "chromium")
        self.base, self.port = base, proc.free_port()
        self.profile = tempfile.TemporaryDirectory(prefix="stag-browser-")
        self.driver = subprocess.Popen(["chromedriver", f"--port={self.port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                       env=os.environ | {"HOME": self.profile.name})
        proc.wait_until(self.is_ready, 60, "chromedriver answers")
        words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={self.profile.name}/profile",
                 f"--window-size={width},900"]
        options = {"args": words}
        if not script:
            options["prefs"] = {"profile.managed_default_content_settings.javascript": 2}
        if width < 500:
            options["mobileEmulation"] = {"deviceMetrics": {"width": width, "height": 844, "pixelRatio": 2}}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self.session = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        if dark:
            scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
            self.do("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": scheme})

    def is_ready(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.ask("GET", "/status")["ready"]
        return False

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        said = json.loads(connection.getresponse().read())["value"]
        expect(not (isinstance(said, dict) and "error" in said), f"{method} {path}: {said}")
        return said

    def do(self, method, path, body=None):
        return self.ask(method, f"/session/{self.session}{path}", {} if body is None and method == "POST" else body)

    def go(self, path):
        self.do("POST", "/url", {"url": self.base + path})

    def run(self, script, *words):
        return self.do("POST", "/execute/sync", {"script": script, "args": list(words)})

    def find(self, css):
        return self.do("POST", "/elements", {"using": "css selector", "value": css})

    def one(self, css):
        return self.there(lambda found: len(found) == 1, "css selector", css)[ELEMENT]

    def there(self, is_right, using, value):
        """The first of the elements that are found so. On a busy machine the page that a click leads to may come after one that only renewed itself."""
        limit = time.monotonic() + 20
        while not is_right(found := self.do("POST", "/elements", {"using": using, "value": value})):
            expect(time.monotonic() < limit, f"{len(found)} of {value} at {self.path}: {self.text()[:500]}")
            time.sleep(0.1)
        return found[0]

    def click(self, css):
        self.do("POST", f"/element/{self.one(css)}/click")

    def follow(self, element):
        """Clicks on what leads to another page, and waits for that: the driver may return before it is there."""
        before = self.find("html")
        self.do("POST", f"/element/{element}/click")

        def is_there():
            with contextlib.suppress(Failed):
                return self.find("html") not in (before, [])
            return False
        proc.wait_until(is_there, 60, "the next page", step=0.02)

    def press(self, text):
        """The button or link with this text; of several, the first."""
        self.follow(self.there(bool, "xpath", f"//main//*[self::button or self::a][normalize-space()='{text}']")[ELEMENT])

    def fill(self, **fields):
        for name, text in fields.items():
            element = self.one(f"[name={name}]")
            self.do("POST", f"/element/{element}/clear")
            self.do("POST", f"/element/{element}/value", {"text": text})

    @property
    def path(self):
        return self.do("GET", "/url").removeprefix(self.base)

    def text(self):
        return self.do("GET", f"/element/{self.find('body')[0][ELEMENT]}/text")

    def console(self):
        return [line for line in self.do("POST", "/se/log", {"type": "browser"}) if line["level"] in ("SEVERE", "WARNING")]

    def picture(self, folder, name):
        with open(os.path.join(folder, name + ".png"), "wb") as file:
            file.write(base64.b64decode(self.do("GET", "/screenshot")))

    def log_in(self, token):
        self.go("/")
        expect(self.path == "/login", f"a stranger is at {self.path}")
        self.fill(token=token)
        self.press("Log in")
        expect(self.path == "/", f"after the login at {self.path}: {self.text()[:300]}")

    def close(self):
        with contextlib.suppress(Exception):
            self.do("DELETE", "")
        proc.end(self.driver)
        self.profile.cleanup()


@contextlib.contextmanager
def opened(lab, *units, **how):
    """A daemon with pages, and a browser in which an administrator has logged in."""
    with managed(lab, *units, http=["dashboard = true"]) as (target, api, token, folder):
        with contextlib.closing(Browser(f"http://127.0.0.1:{api.port}", **how)) as browser:
            browser.log_in(api.token)
            yield target, api, token, folder, browser


def make_disk(browser, folder, chap=True):
    browser.go("/")
    browser.press("Make a disk")
    browser.fill(name=OWN, path=os.path.join(folder, "own.img"), size="64M", initiator=CLIENT)
    if not chap:
        browser.click("#chap")
    browser.press("Show what would change")
    expect("Added:" in browser.text(), f"no plan: {browser.text()[:500]}")
    expect(not os.path.exists(os.path.join(folder, "own.img")), "the plan has made it")
    browser.press("Make the disk")
    said = browser.text()
    expect("It has been done" in said and "iscsiadm" in said and "Connect-IscsiTarget" in said and "esxcli" in said, f"{said[:800]}")
    return said


def disk(lab):
    """1, 4: make a disk for one client, which libiscsi uses by the secret of the last page; then change the secret, and let another one in."""
    proc.need("iscsi-inq")
    with opened(lab, Unit(mib=16, memory=True)) as (target, _, _, folder, browser):
        def secret(said):
            return re.search(r"CHAP secret\s+(\S+)", said)[1]

        def logs_in(name, user, word):
            url = target.urls[0].replace(IQN, OWN).replace("iscsi://", f"iscsi://{user}%{word}@")
            return proc.run("iscsi-inq", "-i", name, url, ok=None).code == 0
        first = secret(make_disk(browser, folder))
        expect(logs_in(CLIENT, "browser", first), "the secret is refused")
        expect(not logs_in(CLIENT, "browser", "a wrong secret."), "any secret does")
        expect(first not in browser.text() or browser.path == "/change/disk", "the secret is shown again")
        browser.go(f"/targets/{OWN}")
        expect(first not in browser.run("return document.documentElement.outerHTML"), "the secret is shown again")
        browser.press("New CHAP secret for browser")
        browser.press("Make the secret")
        second = secret(browser.text())
        expect(logs_in(CLIENT, "browser", second) and not logs_in(CLIENT, "browser", first), "the secret has not changed")
        browser.go(f"/targets/{OWN}")
        browser.press("Let an initiator in")
        browser.fill(initiator="iqn.2026-01.org.example:other")
        browser.press("Show what would change")
        browser.press("Let it in")
        expect(logs_in("iqn.2026-01.org.example:other", "other", secret(browser.text())), "it has not been let in")
        expect(not browser.console(), f"{browser.console()}")


def others(lab):
    """2, 3, 5, 6, 7, 10: who is connected, and disconnected; growth; space; why slow; a drain; what changed; the support bundle."""
    with opened(lab, Unit(mib=16, memory=True)) as (target, api, _, folder, browser):
        make_disk(browser, folder, chap=False)
        with wire.session(target) as session:
            session.write(0, b"\x5a" * 4096)
            browser.go("/clients")
            expect("iSCSI sessions" in browser.text() and len(browser.find("form[action='/change/disconnect']")) == 1, "no session")
            browser.press("Disconnect")
            expect("refused for 10 seconds" in browser.text(), browser.text()[:500])
            browser.press("Disconnect it")
            proc.wait_until(lambda: not api.done("GET", "/sessions"), 60, "the session ends")
        browser.go(f"/targets/{OWN}/units/0")
        browser.press("Grow it")
        browser.fill(size="128M")
        browser.press("Show what would change")
        browser.press("Grow it")
        expect(os.path.getsize(os.path.join(folder, "own.img")) == 128 << 20, "it has not grown")
        browser.go("/")
        expect("File systems under units and exports" in browser.text(), "no space")
        browser.go("/slow")
        expect("medium" in browser.text() and "Time by stage" in browser.text(), "no stages")
        browser.go("/drains")
        browser.press("Drain")
        browser.fill(timeout="0")
        browser.press("Show what would change")
        browser.press("Begin the drain")
        browser.go("/drains")
        browser.press("Let them in again")
        browser.press("Let them in")
        expect(not api.done("GET", "/drain"), "the drain goes on")
        browser.go("/changes")
        expect("token admin" in browser.text() and f"PUT /api/v1/targets/{OWN}" in browser.text(), "the change is not shown")
        bundle = browser.run("return fetch('/support/bundle.json').then(answer => answer.json())")
        expect(bundle["status"]["targets"] and "audit" in bundle and api.token not in json.dumps(bundle), "the bundle")
        expect(any(one["about"] == "kernel" for one in bundle["doctor"]["findings"]), f"{bundle['doctor']}")
        browser.go(f"/targets/{OWN}")
        browser.press("Remove this target")
        browser.press("Remove it")
        expect([one["iqn"] for one in api.done("GET", "/targets")] == [IQN], "the target is left")
        expect(not browser.console(), f"{browser.console()}")


def undo(lab):
    """8: what changed, by whom; undone, and the undo undone. Files stay as they are."""
    with opened(lab, Unit(mib=16, memory=True)) as (_, api, _, folder, browser):
        def targets():
            return sorted(one["iqn"] for one in api.done("GET", "/targets"))
        make_disk(browser, folder)
        both = targets()
        for before, after, word in [(both, [IQN], "Removed"), ([IQN], both, "Added")]:
            browser.go("/changes")
            expect(targets() == before, f"{targets()}")
            browser.press("Undo from here")
            expect(word in browser.text() and targets() == before, f"{browser.text()[:500]}")
            browser.press("Go back")
            expect("It has been done" in browser.text() and targets() == after, f"{targets()}: {browser.text()[:500]}")
        expect(os.path.getsize(os.path.join(folder, "own.img")) == 64 << 20, "the file")
        expect(not browser.console(), f"{browser.console()}")


def export(lab):
    """1: share a folder with one network."""
    with opened(lab, Unit(memory=True)) as (_, api, _, folder, browser):
        os.mkdir(os.path.join(folder, "tree"))
        browser.go("/exports")
        browser.press("Share a folder")
        browser.fill(name="/tree", path=os.path.join(folder, "tree"), network="127.0.0.0/8")
        browser.press("Show what would change")
        browser.press("Share it")
        expect("mount -t nfs" in browser.text(), browser.text()[:500])
        expect(api.done("GET", "/exports/%2Ftree")["configuration"]["client"][0]["network"] == "127.0.0.0/8", "another network")


def accessible(lab):
    """axe finds nothing against WCAG 2.1 A and AA on any page, light and dark, from 1440 to 390 px; nothing scrolls sideways; the console is empty."""
    axe = tools.axe()
    pictures = lab.new_folder("pictures")
    for width, dark in WINDOWS:
        with opened(lab, Unit(mib=16, memory=True), width=width, dark=dark) as (target, _, _, folder, browser):
            with wire.session(target):
                make_disk(browser, folder)
                for path in [None, *PATHS, "/nothing", "/login"]:
                    if path:
                        browser.go(path)
                    found = browser.run(axe + "; return axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']}).then(said => said.violations)")
                    expect(not found, f"{path} at {width} px: {[(one['id'], [node['html'] for node in one['nodes']]) for one in found]}")
                    wide = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
                    expect(wide <= 0, f"{path} is {wide} px too wide at {width} px")
                    browser.picture(pictures, f"{width}-{(path or 'done').replace('/', '_').replace(':', '_')}")
                missing = [line for line in browser.console() if "404" not in line["message"]]
                expect(not missing, f"{missing}")
    expect(len(glob.glob(os.path.join(pictures, "*.png"))) == len(WINDOWS) * (len(PATHS) + 3), "pictures are missing")


def keyboard(lab):
    """By keys alone: the skip link comes first, and Tab reaches every link and button with a visible mark."""
    with opened(lab, Unit(memory=True)) as (_, _, _, _, browser):
        browser.go("/targets")
        body, reached = browser.one("body"), []
        number = browser.run("return document.querySelectorAll('a[href], button, input:not([type=hidden]), select, [tabindex=\"0\"]').length")
        for _ in range(number):
            browser.do("POST", f"/element/{body}/value", {"text": "\ue004"})
            reached.append(browser.run("const at = document.activeElement, style = getComputedStyle(at); "
                                       "return [at.textContent.trim(), style.outlineStyle, style.outlineWidth]"))
        expect(reached[0][0] == "Skip to the content", f"{reached[:3]}")
        expect(len({text for text, *_ in reached}) > 8 and all(style == "solid" and width == "3px" for _, style, width in reached), f"{reached}")


def plain(lab):
    """Without script all is there: the disk is made as with it."""
    with managed(lab, Unit(memory=True), http=["dashboard = true"]) as (_, api, _, folder):
        with contextlib.closing(Browser(f"http://127.0.0.1:{api.port}", script=False)) as browser:
            browser.log_in(api.token)
            make_disk(browser, folder)
            browser.go("/")
            expect("Reads a second" in browser.text(), "no rates without a script")


def live(lab):
    """Charts are drawn, second by second; all that the first page loads is 150 KB at most."""
    with opened(lab, Unit(mib=16, memory=True)) as (target, _, _, _, browser):
        browser.go("/")
        proc.wait_until(lambda: len(browser.find("#charts canvas")) == 3, 60, "three charts")
        with wire.session(target) as session:
            session.write(0, b"\x5a" * 4096)
        proc.wait_until(lambda: len(browser.run("return fetch('/live.json').then(answer => answer.json())")) > 2, 60, "samples")
        # What the browser has kept counts as well.
        size = browser.run("return performance.getEntries().filter(one => one.encodedBodySize && !one.name.includes('/live.json'))"
                           ".reduce((sum, one) => sum + one.encodedBodySize, 0)")
        expect(50_000 < size <= 150_000, f"{size} bytes")
        expect(not browser.console(), f"{browser.console()}")


@contextlib.contextmanager
def other_host(page):
    """A web server of another name with this one page, which answers from here on. -> its URL"""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://localhost:{server.server_port}/"
        finally:
            server.shutdown()


def sessions(lab):
    """A session ends with its token and by logging out; a page of another host cannot send a form in its name."""
    with opened(lab, Unit(memory=True)) as (target, api, token, _, browser):
        page = (f"<form id=f method=post action='http://127.0.0.1:{api.port}/change/undrain'><input name=all value=yes></form>"
                "<script>f.submit()</script>")

        def refused():
            with contextlib.suppress(Failed):  # The page may change between its element and the element's text.
                return "another host" in browser.text()
            return False
        with other_host(page) as url:
            browser.do("POST", "/url", {"url": url})
            proc.wait_until(refused, 60, "the form of another page is refused")
        browser.go("/targets")
        expect(browser.path == "/targets", "the session is gone")
        browser.follow(browser.one("header form button"))
        expect(browser.path == "/login", "still logged in")
        browser.log_in(token("operate"))
        proc.run(Stag.binary, "token", "--control", target.control, "remove", "operate")
        browser.go("/targets")
        expect(browser.path == "/login", "the token is gone, the session is not")


CASES = [
    ("a disk for one client, its secret, another client", disk),
    ("clients, growth, space, slowness, drains, changes, support", others),
    ("what changed, and the way back", undo),
    ("a folder for one network", export),
    ("axe finds no violation, wide and narrow, light and dark", accessible),
    ("the keyboard alone is enough", keyboard),
    ("all is there without script", plain),
    ("charts are drawn, and the page is small", live),
    ("sessions end, and foreign forms are refused", sessions),
]
