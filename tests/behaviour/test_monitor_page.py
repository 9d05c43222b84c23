"""The page of baton-monitor, in Debian's Chromium: it shows what happens, and can be used without a mouse."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from harness.account import server_program
from harness.authenticators import program
from harness.health import wait_until
from harness.ports import HOST, free_port
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = [pytest.mark.pool_only, pytest.mark.one_major]

PARAMETERS = {"pg_baton.max_backends": 3, "pg_baton.max_extra_backends": 0}
DESK = (1440, 1300)
PHONE = (390, 800)
# A page shows text of clients; none of it may become a part of the page.
HOSTILE = "<img src=x onerror=document.title='taken'>"


class Page:
    """A browser's tab with the page."""

    def __init__(self, driver: webdriver.Chrome, url: str):
        self.driver = driver
        self.url = url

    def open(self, size: tuple[int, int] = DESK, scheme: str = "light") -> None:
        self.appear(size, scheme)
        self.driver.get_log("browser")  # of an earlier page
        self.driver.get(self.url)
        self.wait(lambda: self.text("t-sessions") != "–", "numbers")

    def appear(self, size: tuple[int, int], scheme: str) -> None:
        command = self.driver.execute_cdp_cmd
        width, height = size
        device = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        command("Emulation.setDeviceMetricsOverride", device)
        command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def element(self, name: str):
        return self.driver.find_element(By.ID, name)

    def text(self, name: str) -> str:
        return self.script("return document.getElementById(arguments[0]).innerText", name)

    def table(self, name: str) -> list[list[str]]:
        cells = "[...row.cells].map(cell => cell.innerText)"
        return self.script(f"return [...document.getElementById(arguments[0]).rows].map(row => {cells})", name)

    def script(self, code: str, *arguments):
        return self.driver.execute_script(code, *arguments)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def wait(self, check, what: str) -> None:
        wait_until(check, what=f"the page shows {what}")

    def keep_picture(self, name: str) -> None:
        """For docs/: BATON_TEST_PICTURES=docs."""
        if folder := os.environ.get("BATON_TEST_PICTURES"):
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = program("chromium", "chromium")
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(option)
    driver = webdriver.Chrome(options=options, service=Service(program("chromedriver", "chromium-driver")))
    yield driver
    driver.quit()


@pytest.fixture
def watched(make_cluster, browser):
    """A cluster, what connects to its pool, and a page."""
    port = free_port()
    cluster = make_cluster(parameters={**PARAMETERS, "pg_baton.monitor_port": port})
    cluster.sql("CREATE EXTENSION pg_baton")
    cluster.sql("CREATE ROLE clerk LOGIN")

    def connect(**options) -> psycopg.Connection:
        return psycopg.connect(cluster.pool(user="clerk", **options), autocommit=True)

    yield cluster, connect, Page(browser, f"http://{HOST}:{port}/")
    browser.get("about:blank")


def test_page_shows_who_waits_and_who_holds_the_backends(watched):
    """The waiting session, the transactions and the dedicated session that have all backends; and when it is over."""
    cluster, connect, page = watched
    with (
        connect(application_name="keeper") as keeper,
        connect(application_name="first") as first,
        connect(application_name=HOSTILE) as second,
        connect(application_name="third") as third,
        connect(application_name="waiter") as waiter,
    ):
        keeper.execute("CREATE TEMP TABLE kept ()")
        first.execute("BEGIN")
        second.execute("BEGIN")
        third.execute("BEGIN")
        waiter.pgconn.send_query(b"SELECT 1")
        page.open()
        pid = str(waiter.info.backend_pid)
        page.wait(
            lambda: page.table("waits")[1:2] and page.table("waits")[1][:4] == [pid, "clerk", "postgres", "waiter"],
            "the waiting session",
        )
        assert page.text("t-waiting") == "1" and page.text("t-backends") == "4 of 4"
        assert "1 wait for 3 backends at work and 1 dedicated" in page.text("holders")
        page.wait(lambda: len(page.table("transactions")) == 4, "all transactions")
        shown = {row[3]: row[4] for row in page.table("transactions")[1:]}
        assert shown == dict.fromkeys(("first", HOSTILE, "third"), "idle in transaction")
        assert page.table("causes")[1:] == [["temporary object", "1"]]
        assert dict(page.table("restart")[1:])["Transactions that are rolled back"] == "3"
        own = dict(page.table("dispatcher")[1:])
        assert own["Memory of contexts"].endswith(" MB") and own["Longest turn since its start"] != "–"
        page.keep_picture("page-waiting")
        first.execute("COMMIT")
        page.wait(lambda: page.table("waits") == [["No session waits."]], "that none waits")
        assert "pg_baton" in page.driver.title and "taken" not in page.driver.title
        second.execute("COMMIT")
        third.execute("COMMIT")
        while waiter.pgconn.get_result():
            pass
        page.wait(lambda: page.table("transactions") == [["No transaction is open."]], "that no transaction is open")


def test_page_is_used_by_keys_and_asks_no_other_host(watched):
    """Range, hold and the charts' cursor by keyboard; wide, narrow, light and dark."""
    cluster, connect, page = watched
    with connect() as session:
        session.execute("SELECT 1")
        page.open(scheme="dark")
        ground = "return getComputedStyle(document.body).backgroundColor"
        dark = page.script(ground)
        page.appear(DESK, "light")
        assert page.script(ground) != dark

        page.script("document.querySelector('#range input').focus()")
        page.press(Keys.ARROW_RIGHT)
        assert page.script("return document.querySelector('#range :checked').value") == "3600"
        page.press(Keys.TAB, Keys.SPACE)
        assert page.element("hold").get_attribute("aria-pressed") == "true"
        page.press(Keys.SPACE)
        page.press(Keys.TAB, Keys.ARROW_LEFT)
        page.wait(lambda: "at " in page.text("c-transactions"), "the time of the cursor")
        label = page.script("return document.activeElement.getAttribute('aria-label')")
        assert label.startswith("Transactions a second: ")

        page.appear(PHONE, "dark")
        assert page.script("return document.scrollingElement.scrollWidth <= innerWidth")
        page.keep_picture("page-phone")
        asked = page.script(
            "return performance.getEntries().map(entry => entry.name).filter(name => name.includes(':'))"
        )
        assert asked and all(name.startswith(page.url) for name in asked)
        assert [line for line in page.driver.get_log("browser") if line["level"] == "SEVERE"] == []


def test_page_tells_of_refusals_restarts_and_goes_on(watched):
    """A refused login and another dispatcher are events; the page comes back after the server's restart."""
    cluster, connect, page = watched
    with connect() as session:
        session.execute("SELECT 1")
    page.open()
    cluster.sql("ALTER ROLE clerk NOLOGIN")
    with pytest.raises(psycopg.OperationalError):
        connect()
    page.wait(lambda: "refused (28000)." in page.text("events"), "the refused login")
    cluster.sql("SELECT pg_baton_restart_dispatcher()")
    page.wait(lambda: "Another dispatcher has started." in page.text("events"), "the restart")
    cluster.sql("ALTER ROLE clerk LOGIN")
    cluster.restart()
    page.wait(lambda: page.text("state") == "accepting logins", "the server")
    with connect() as session:
        session.execute("CREATE TEMP TABLE kept ()")
        page.wait(
            lambda: "1 session of clerk in postgres keeps its backend: temporary object." in page.text("events"),
            "the cause",
        )


def test_history_lasts_longer_than_the_page(watched):
    """A page that is opened later begins with what was before."""
    cluster, connect, page = watched
    url = page.url
    with connect() as session:
        session.execute("SELECT 1")
        wait_until(lambda: len(history(url)["rows"]) >= 2, what="a row of history")
    told = history(url)
    assert all(len(row) == 1 + len(told["columns"]) for row in told["rows"])


def history(url: str) -> dict:
    with urllib.request.urlopen(f"{url}history", timeout=20) as answer:
        return json.load(answer)


@pytest.mark.skipif("BATON_TEST_PICTURES" not in os.environ, reason="makes the pictures of docs/")
def test_pictures_for_the_docs(watched):
    cluster, connect, page = watched
    pgbench = [server_program("pgbench"), "--host", HOST, "--port", str(cluster.pool_port), "postgres"]
    subprocess.run([*pgbench, "--username", "postgres", "--initialize", "--quiet"], check=True)
    cluster.sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO clerk; CREATE ROLE app SUPERUSER LOGIN")
    with connect(application_name="report") as report, connect(application_name="listener") as listener:
        listener.execute("LISTEN news")
        report.execute("BEGIN")
        load = [*pgbench, "--no-vacuum", "--select-only", "--time", "150", "--jobs", "1"]
        steady = subprocess.Popen([*load, "--username", "clerk", "--client", "40", "--rate", "900"])
        page.open()
        time.sleep(60)
        peak = subprocess.Popen([*load, "--username", "app", "--client", "6", "--time", "25", "--rate", "500"])
        peak.wait()
        time.sleep(45)
        page.keep_picture("page")
        page.appear(DESK, "dark")
        page.keep_picture("page-dark")
        steady.wait()
