"""Drives Debian's chromium without a window, by its driver: for pictures and for measurements."""

import base64
import contextlib
import json
import subprocess
import tempfile
import time
import urllib.request

# Each part of a page has come: nothing loads, no page is on its way.
SETTLED = """return Boolean(document.querySelector('main > .page[data-ready]'))
    && !document.querySelector('[aria-busy], .page.coming, progress')"""
ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


@contextlib.contextmanager
def running(command, **options):
    """Runs a command until the end of a block."""
    child = subprocess.Popen(command, **options)
    try:
        yield child
    finally:
        child.terminate()
        child.wait()


def ask(url, body=None, method="POST"):
    """Makes a request of the browser's driver; returns its value."""
    data = json.dumps(body).encode() if method == "POST" else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=180) as reply:
        return json.load(reply)["value"]


class Browser:
    """A window of the browser."""

    def __init__(self, session):
        self.session = session

    def devtools(self, command, **parameters):
        """Gives a command of the browser's own protocol; returns its result."""
        return ask(self.session + "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script):
        """Runs statements and returns what they return; waits for a promise."""
        return ask(self.session + "/execute/sync", {"script": script, "args": []})

    def looks(self, width, height, scheme, scale=1):
        """Sets the size of the window, the colours that the system prefers, and the pixels per length."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                      mobile=False)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, address, patience=120):
        """Goes to an address, anew, and waits until all of the page is there."""
        ask(self.session + "/url", {"url": "about:blank"})
        ask(self.session + "/url", {"url": address})
        until = time.time() + patience
        while not self.run(SETTLED):
            if time.time() > until:
                raise SystemExit(f"{address} did not draw within {patience} seconds: {self.run('return document.body.innerText')}")
            time.sleep(0.05)

    def picture(self):
        """Returns what the window shows, as a PNG."""
        return base64.b64decode(self.devtools("Page.captureScreenshot", format="png")["data"])


@contextlib.contextmanager
def browser():
    """Starts a browser with a profile of its own, until the end of a block."""
    with tempfile.TemporaryDirectory() as profile, contextlib.ExitStack() as stack:
        driver = stack.enter_context(running(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True))
        port = next(l.rsplit(" ", 1)[1].strip(". \n") for l in driver.stdout if "successfully on port" in l)
        options = {"args": ARGUMENTS + ["--user-data-dir=" + profile]}
        driver = f"http://127.0.0.1:{port}/session"
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        session = driver + "/" + ask(driver, wanted)["sessionId"]
        try:
            yield Browser(session)
        finally:
            ask(session, method="DELETE")


@contextlib.contextmanager
def served(prof, recording):
    """Serves a recording until the end of a block; returns the address, and the recording's id."""
    serve = [prof, "serve", recording, "--token", "none", "--listen", "127.0.0.1:0"]
    with running(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        address = server.stdout.readline().strip()
        with urllib.request.urlopen(address + "api/v1/recordings", timeout=120) as reply:
            yield address, json.load(reply)["recordings"][0]["id"]
