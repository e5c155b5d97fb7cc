"""Take the picture of the page in service.md: ``python docs/make_screenshot.py [CLIP] [PNG]``.

Needs chromium and chromedriver, and ``asvspoof-cm serve`` running with its defaults.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

HERE = Path(__file__).resolve().parent
CLIP = HERE.parent / "examples" / "audio" / "synthetic_festival_hts.flac"


def main(clip=CLIP, picture=HERE / "_static" / "service.png", width=760, scheme="light"):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
        *("disable-background-networking", "disable-component-update", "disable-sync"),
        f"user-data-dir={tempfile.mkdtemp()}",
    ):
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    screen = {"width": int(width), "height": 800, "deviceScaleFactor": 1, "mobile": False}
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    try:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.get("http://127.0.0.1:8000")
        driver.find_element(By.ID, "file").send_keys(str(Path(clip).resolve()))
        WebDriverWait(driver, 120).until(lambda d: d.find_element(By.ID, "verdict").is_displayed())
        height = driver.execute_script("return document.documentElement.scrollHeight")
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**screen, "height": height})
        driver.save_screenshot(str(picture))
    finally:
        driver.quit()


if __name__ == "__main__":
    main(*sys.argv[1:])
