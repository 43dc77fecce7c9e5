"""The site in Chromium at 1280 pixels: no text is cut off, and a search finds the right page.

`make site-test` builds the site and runs this; no other command collects it.
"""

import functools
import http.server
import json
import os
import queue
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

SITE = Path(__file__).parents[2] / "build" / "site"
SCRIPT = Path(__file__).with_suffix(".html")
NAMES = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"

PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))
FOUND_FIRST = {
    "scan": "docs/scan.html",
    "segment_sum": "docs/reference/control-flow.html#xfunc.segment_sum",
    "at[].set": "docs/reference/control-flow.html#xfunc.transforms.at.IndexUpdateRef.set",
}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site, the script, what the script is to do, and takes its report."""

    def __init__(self, reports: queue.Queue[Any], *args: Any, **kwargs: Any) -> None:
        self.reports = reports
        super().__init__(*args, directory=SITE, **kwargs)

    def do_GET(self) -> None:
        match self.path:
            case "/script":
                self.send_body("text/html", SCRIPT.read_text(encoding="utf-8"))
            case "/wanted":
                wanted = {"pages": PAGES, "queries": list(FOUND_FIRST)}
                self.send_body("application/json", json.dumps(wanted))
            case _:
                super().do_GET()

    def do_POST(self) -> None:
        self.reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_body("text/plain", "")

    def send_body(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def browser() -> str:
    """The command of Chromium."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.exit(
            f"this needs Chromium, and there is none of {', '.join(NAMES)}: install it "
            "(Debian: apt install chromium), or set CHROMIUM to its path",
            returncode=2,
        )
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the script found on the pages, and by its searches."""
    if not PAGES:
        pytest.exit(f"there is no site in {SITE}: `make docs` builds it", returncode=2)
    reports: queue.Queue[Any] = queue.Queue()
    handler = functools.partial(Handler, reports)
    options = ["--headless", "--disable-gpu", "--window-size=1400,1100", "--no-first-run"]
    options.append(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    if os.geteuid() == 0:
        options.append("--no-sandbox")  # which root cannot have
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [browser(), *options, f"http://127.0.0.1:{server.server_port}/script"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                found = reports.get(timeout=300)
            finally:
                process.terminate()
                server.shutdown()
    assert "error" not in found, found["error"]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_page_fits_its_window(page: str, report: dict[str, dict[str, Any]]) -> None:
    assert report["pages"][page] == []


@pytest.mark.parametrize("query", FOUND_FIRST)
def test_search_first_result(query: str, report: dict[str, dict[str, Any]]) -> None:
    first = urlsplit(report["queries"][query])
    address = first.path.removeprefix("/") + (f"#{first.fragment}" if first.fragment else "")
    assert address == FOUND_FIRST[query]
