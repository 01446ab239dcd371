"""Takes the pictures of docs/how-to/playground.md from a real engine in a real browser (`make screens`)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser, expect

from bench.transformers_generate import load
from tests.api.real_server import RealServer
from tests.browser import browser
from tests.engine.helpers.adapters import RandomAdapter

FOLDER = Path(__file__).parent / "how-to"
QUESTION = "Write a Python function that adds two numbers, as a code block."
MODEL_B = "random-adapter"
"""A LoRA adapter with small random weights: both columns have the same settings and seed, so that one model would
give one answer twice."""
PICTURES: dict[str, dict[str, Any]] = {
    "playground-light.png": {"color_scheme": "light", "viewport": {"width": 1100, "height": 900}},
    "playground-dark.png": {"color_scheme": "dark", "viewport": {"width": 1100, "height": 900}},
    "playground-phone.png": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}


def take(chromium: Browser, url: str, name: str, **options: Any) -> None:
    """One picture of two answers to the same question."""
    page = chromium.new_page(**options)
    page.goto(url)
    expect(page.get_by_label("Model A")).to_have_value("smollm2")
    if "phone" not in name:
        page.get_by_label("Compare two").check()
        page.get_by_label("Model B").select_option(MODEL_B)
    page.get_by_text("System message, sampling").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("60")
    page.get_by_text("System message, sampling").click()
    page.get_by_label("Your message").fill(QUESTION)
    page.keyboard.press("Enter")
    for timing in page.locator(".timing").locator("visible=true").all():
        expect(timing).to_contain_text("tokens/s", timeout=240_000)
    page.wait_for_timeout(5500)  # the strip at the top is as old as its last look
    page.screenshot(path=FOLDER / name)
    page.close()


def adapter_in(folder: Path) -> Path:
    """Save an adapter of smollm2's attention."""
    model, _ = load("smollm2", torch.float32)
    return RandomAdapter(8, ("q_proj", "v_proj"), std=0.06).save(model, folder)


def main() -> None:
    """Entry point of `python -m docs.playground`."""
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        adapter = adapter_in(Path(folder) / MODEL_B)
        options = ["--max-model-len", "1024", "--num-kv-blocks", "512", "--max-num-seqs", "16"]
        options += ["--dtype", "bfloat16", "--enable-lora", "--lora-modules", f"{MODEL_B}={adapter}"]
        server = RealServer(Path(folder) / "log", "smollm2", *options)
        try:
            server.wait_until(server.is_ready)
            for name, options in PICTURES.items():
                take(chromium, server.url, name, **options)
        finally:
            server.end()


if __name__ == "__main__":
    main()
