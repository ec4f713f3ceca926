"""Both pages as a person opens them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser
REPOSITORY = Path(__file__).resolve().parents[3]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
def dashboard(swept_store: Path, tmp_path: Path) -> Iterator[str]:
    """Address of a running dashboard over the swept store."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", str(REPOSITORY / "app.py"), "--server.port", str(port)]
    command += ["--server.address", "127.0.0.1", "--server.headless", "true", "--server.fileWatcherType", "none"]
    command += ["--browser.gatherUsageStats", "false"]
    environment = {**os.environ, "WORKBENCH_STORE": str(swept_store)}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_healthy(f"{address}/_stcore/health", process, tmp_path / "log")
            yield address
        finally:
            process.terminate()
            process.wait(timeout=20)


def _wait_until_healthy(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"the dashboard did not start: {log.read_text()[-2000:]}")


def test_pages_show_their_plots_and_no_exception(dashboard: str) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        for path, title, num_plots in (("/", "Sweeps", 8), ("/runs", "Runs", 5)):
            page.goto(dashboard + path)
            expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible(timeout=30_000)
            plots = page.locator(".js-plotly-plot")
            expect(plots).to_have_count(num_plots, timeout=30_000)
            for index in range(num_plots):
                expect(plots.nth(index).locator(".main-svg").first).to_be_visible()
            assert page.get_by_test_id("stException").count() == 0
        browser.close()
