"""The page in a real browser: each tab, the keyboard alone, both themes, a phone, and nothing from elsewhere."""

import csv
import io
import json
import os
import re
import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

import gemel
from gemel.serve.access import read_keys
from gemel.serve.protocols.operations import page_files, page_routes
from page_checks import CONTRAST, UNNAMED
from page_server import KEY, TRAP, PageServer
from serve_case import app_of, live, make_services
from tiny import tiny_bert

CHROMIUM = shutil.which("chromium")
TABS = ["search", "compare", "pairs", "clusters", "server"]
TEXTS = ["A man plays a guitar.", "Someone makes music.", "The market fell.", "Shares lost value."]

browser_needed = pytest.mark.skipif(CHROMIUM is None, reason="needs an installed Chromium")


@pytest.fixture(scope="module")
def server():
    with PageServer() as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield running
        running.close()


@pytest.fixture
def opened(browser, server):
    """A function that opens a tab; any warning of the browser or request to another host fails the test."""
    server.requests.clear()
    server.wants_key, server.fails = False, None
    server.holds = lambda path, body: False
    contexts, complaints = [], []

    def open_tab(tab="search", *, expect_refusals=False, own_clock=False, address=None, **settings):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        if own_clock:
            page.clock.install()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                complaints.append(message.text)
                if message.type in ("error", "warning")
                and not (expect_refusals and "status of 4" in message.text)
                else None
            ),
        )
        page.on(
            "request",
            lambda request: (
                complaints.append(f"asks {request.url}")
                if not request.url.startswith((address or server.url, "blob:"))
                else None
            ),
        )
        page.goto(f"{address or server.url}/#{tab}")
        return page

    yield open_tab
    for context in contexts:
        context.close()
    assert complaints == []


def fill(page, tab, texts=TEXTS):
    page.fill(f"#{tab}-texts", "\n".join(texts))


def show(page, tab):
    """Open a tab and fill it with results."""
    page.click(f"#tab-{tab}")
    if tab == "search":
        page.select_option("#source", "")
    if tab == "server":
        page.wait_for_selector("#server .chart .line[d]", state="attached")
    else:
        page.click(f"#{tab} [data-examples]")
        page.wait_for_selector(f"#{tab} :is(.hit, .heat, .list, .map)")
    if tab == "search":
        page.locator("#search .hit button.link").first.click()
        page.wait_for_selector("#search .sentence")


def get(path, **headers):
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    return TestClient(Starlette(routes=page_routes())).get(
        path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def test_a_file_is_sent_once_and_then_only_confirmed():
    first = get("/")
    assert first.status_code == 200
    assert first.headers["content-type"] == "text/html; charset=utf-8"
    again = get("/", if_none_match=f'"other", W/{first.headers["etag"]}')
    assert (again.status_code, again.content) == (304, b"")
    assert get("/", if_none_match='"other"').status_code == 200


@pytest.mark.parametrize("name", ["../port.py", "..%2Fport.py", "index.htm", "", ".", "%2e%2e/limits.py"])
def test_only_files_of_the_page_are_sent(name):
    assert get(f"/page/{name}").status_code == 404


def test_every_file_comes_with_a_policy_that_allows_nothing_inline():
    for path in ["/", "/page/unknown.js", *(f"/page/{name}" for name in page_files())]:
        headers = get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_the_files_name_no_other_host_and_write_no_markup():
    for name, file in page_files().items():
        source = file.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[a-z]+\.[a-z]", source), name
        code = re.sub(r"//.*", "", source)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", code), name


def test_every_file_of_the_page_is_used():
    files = page_files()
    sources = {name: file.body.decode() for name, file in files.items()}
    for name in files:
        others = "".join(source for other, source in sources.items() if other != name)
        assert name == "index.html" or name in others, f"nothing loads {name}"


@browser_needed
def test_results_appear_as_one_types(opened, server):
    page = opened()
    page.select_option("#source", "")
    fill(page, "search")
    page.type("#query", "music")
    page.wait_for_selector("#search .hit")
    assert page.locator("#search .hit p").all_text_contents() == TEXTS
    assert "4 results in 4 ms" in page.inner_text("#search [data-status]")
    first = page.locator("#search .hit").first
    assert "Above 99.96 % of random pairs" in first.inner_text()
    assert "entailment 80 %" in first.inner_text()
    requested = server.bodies("/search")[-1]
    assert requested == {"query": "music", "k": 10, "mode": "dense", "texts": TEXTS}
    assert len(server.bodies("/search")) < len("music")  # the page waits for a pause between keys


@browser_needed
def test_an_older_answer_never_replaces_a_newer_one(opened, server):
    page = opened()
    page.select_option("#source", "")
    fill(page, "search")
    server.holds = lambda path, body: (body or {}).get("query") == "first"
    page.fill("#query", "first")
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/search")):
        with page.expect_request("**/search"):
            page.press("#query", "Enter")
        page.fill("#query", "second")
        page.press("#query", "Enter")
    page.wait_for_selector("#search .hit")
    assert server.bodies("/search")[-1]["query"] == "second"


@browser_needed
def test_an_index_is_searched_with_a_filter_and_words(opened, server):
    page = opened()
    page.wait_for_selector("#source option[value='=notes']", state="attached")
    assert page.input_value("#source") == "=notes"
    page.fill("#query", "note")
    page.fill("#where", "lang = 'en'")
    page.select_option("#mode", "hybrid")
    page.wait_for_selector("#search .hit")
    expect(page.locator("#search")).to_have_attribute("aria-busy", "false")
    expected = {"query": "note", "k": 10, "index": "notes", "where": "lang = 'en'", "mode": "hybrid"}
    assert server.bodies("/search")[-1] == expected
    assert "lang: en" in page.inner_text("#search .hit")


@browser_needed
def test_a_filter_applies_as_one_types_and_half_of_it_is_no_alarm(opened, server):
    page = opened(expect_refusals=True)
    page.wait_for_selector("#source option[value='=notes']", state="attached")

    def refuse_half_a_condition(route):
        where = json.loads(route.request.post_data).get("where", "lang = 'en'")
        if where.endswith("'") and where.count("'") == 2:
            route.fallback()
        else:
            route.fulfill(status=422, json={"error": {"message": "a value is missing after ="}})

    page.route("**/search", refuse_half_a_condition)
    page.fill("#query", "note")
    expect(page.locator("#search .hit")).to_have_count(3)
    page.type("#where", "lang =")
    expect(page.locator("#search [data-status]")).to_have_text(
        "The filter is not applied yet: a value is missing after ="
    )
    assert page.locator("#search .status.bad").count() == 0
    assert page.locator("#search .hit").count() == 3  # those without the filter stay
    page.type("#where", " 'en'")
    expect(page.locator("#search [data-status]")).to_contain_text("3 results")
    assert server.bodies("/search")[-1]["where"] == "lang = 'en'"
    page.fill("#where", "lang =")
    page.press("#where", "Tab")  # done typing: now it is an error
    expect(page.locator("#search .status.bad")).to_have_text("a value is missing after =")


@browser_needed
def test_only_the_modes_that_there_are_can_be_chosen(opened, server):
    page = opened()
    page.wait_for_selector("#source option[value='=notes']", state="attached")
    options = page.locator("#mode option")
    assert options.all_text_contents() == [
        *("Meaning", "Weighted words", "Exact words", "Several rankings, fused")
    ]
    page.select_option("#mode", "sparse")
    page.fill("#query", "note")
    page.wait_for_selector("#search .hit")
    assert server.bodies("/search")[-1]["mode"] == "sparse"
    assert "Product of weights 0.900" in page.inner_text("#search .hit")
    page.select_option("#source", "")
    expect(options).to_have_count(5)
    assert page.input_value("#mode") == "dense"
    fill(page, "search")
    page.select_option("#mode", "late")
    expect(page.locator("#search .hit").first).to_contain_text("MaxSim 0.900")
    assert server.bodies("/search")[-1] == {"query": "note", "k": 10, "mode": "late", "texts": TEXTS}


@browser_needed
def test_a_hit_shows_why_it_matches_with_the_keyboard_alone(opened, server):
    page = opened(reduced_motion="reduce")
    page.select_option("#source", "")
    text = "𝒳: A man plays a guitar, and nobody hears it."  # its first character is two units of JavaScript
    fill(page, "search", [text])
    page.select_option("#mode", "sparse")
    page.fill("#query", "guitar plays cello")
    button = page.locator("#search .hit").get_by_role("button", name="Why it matches")
    button.focus()
    page.keyboard.press("Enter")
    marks = page.locator("#search .hit mark")
    expect(marks).to_have_text(["plays", "guitar"])
    expect(button).to_have_attribute("aria-expanded", "true")
    assert page.locator("#search .hit > p").text_content() == text
    shares = [mark.evaluate("node => node.style.getPropertyValue('--a')") for mark in marks.all()]
    assert shares == ["50%", "100%"]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST, 4.5) == []
    assert page.locator("#search .matches li").all_text_contents() == [
        "“guitar” adds 2.000",
        "“plays” adds 1.000",
        "“meant” (not written, but meant) adds 0.250",
    ]
    assert "Not in this text: cello." in page.inner_text("#search .matches")
    assert server.bodies("/explain") == [{"left": "guitar plays cello", "right": text, "mode": "sparse"}]
    page.keyboard.press("Enter")
    expect(marks).to_have_count(0)
    expect(button).to_have_attribute("aria-expanded", "false")
    assert page.locator("#search .hit > p").text_content() == text


@browser_needed
def test_a_fused_hit_is_explained_by_each_ranking(opened, server):
    page = opened()
    page.wait_for_selector("#source option[value='=notes']", state="attached")
    page.select_option("#mode", "hybrid")
    page.fill("#query", "note")
    page.locator("#search .hit button.link").first.click()
    expect(page.locator("#search .sentence span")).to_have_count(5)
    picks = page.locator("#search .matches .pick button")
    assert picks.all_text_contents() == ["Meaning", "Weighted words", "Exact words"]
    picks.nth(2).click()
    expect(page.locator("#search .hit mark")).to_have_text(["note"])
    assert server.bodies("/explain")[-1] == {
        "left": "note",
        "right": "A note of the index.",
        "mode": "words",
        "index": "notes",
    }
    assert page.evaluate("document.activeElement.textContent") == "Exact words"
    assert page.evaluate(UNNAMED) == []


@browser_needed
def test_token_pairs_are_listed_without_special_tokens(opened):
    page = opened()
    page.select_option("#source", "")
    fill(page, "search", ["a guitar"])
    page.select_option("#mode", "late")
    page.fill("#query", "guitar")
    page.locator("#search .hit button.link").click()
    expect(page.locator("#search .matches li")).to_have_text(["“guitar” finds “guitar” and adds 2.000"])
    assert "Special tokens of the model add 0.250." in page.inner_text("#search .matches")


@browser_needed
def test_an_explanation_that_is_refused_says_why(opened):
    page = opened(expect_refusals=True)
    page.select_option("#source", "")
    fill(page, "search")
    page.fill("#query", "music")
    page.route(
        "**/explain", lambda route: route.fulfill(status=413, json={"error": {"message": "it is too long"}})
    )
    page.locator("#search .hit button.link").first.click()
    expect(page.locator("#search .matches [role=status]")).to_have_text("it is too long")


@browser_needed
def test_markup_in_a_text_stays_text(opened):
    page = opened()
    page.wait_for_selector("#source option[value='=notes']", state="attached")
    page.fill("#query", TRAP)
    page.wait_for_selector("#search .hit")
    assert TRAP in page.locator("#search .hit p").all_text_contents()
    assert page.locator("#search img").count() == 0
    assert page.evaluate("window.trapped") is None


@browser_needed
def test_the_heat_map_sums_to_the_score_and_is_accessible(opened):
    page = opened("compare")
    page.fill("#left", "a man plays")
    page.fill("#right", "someone plays music")
    page.wait_for_selector("#compare .heat")
    cells = [float(cell) for cell in page.locator("#compare .heat td[data-i]").all_text_contents()]
    shown = float(page.inner_text("#compare .verdict b"))
    assert len(cells) == 9
    assert sum(cells) == pytest.approx(shown, abs=0.005)
    page.focus("#compare .heat td[data-i]")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#compare .reading").startswith("“a” and “plays” add")
    assert page.locator("#compare .strong li").count() == 5
    page.click("#compare .pick button >> text=Tokens")
    assert page.locator("#compare .heat td[data-i]").count() == 12


@browser_needed
def test_special_tokens_are_not_among_the_strongest_words(opened):
    page = opened("compare")
    tokens = {"left": ["[CLS]", "dogs", "bark", "</s>"], "right": ["<s>", "a", "dog", "[SEP]"]}
    table = [[0.2, 0.1, 0.1, 0.1], [0.1, 0.01, 0.04, 0.1], [0.1, 0.01, 0.02, 0.1], [0.1, 0.1, 0.1, -0.5]]
    answer = {"score": 0.78, "left_tokens": tokens["left"], "right_tokens": tokens["right"], "table": table}
    page.route("**/explain", lambda route: route.fulfill(json=answer))
    page.fill("#left", "dogs bark")
    page.fill("#right", "a dog")
    page.wait_for_selector("#compare .heat")
    strongest = page.locator("#compare .strong li").all_text_contents()
    assert len(strongest) == 4
    assert strongest[0] == "“dogs” and “dog” add .040"
    assert not any(token in " ".join(strongest) for token in ("[CLS]", "[SEP]", "<s>", "</s>"))
    assert "Special tokens of the model, such as [CLS], add .700 in all." in page.inner_text("#compare .why")


@browser_needed
def test_long_texts_fold_into_a_table_with_the_same_sum(opened):
    page = opened("compare")
    page.fill("#left", " ".join(f"w{at}" for at in range(60)))
    page.fill("#right", "one two")
    page.wait_for_selector("#compare .heat")
    assert page.locator("#compare .heat tbody tr").count() == 37
    total = page.inner_text("#compare .heat tbody tr:last-child td:last-child")
    assert total == page.inner_text("#compare .verdict b").removeprefix("0")


@browser_needed
def test_pairs_are_sorted_and_downloaded(opened, server):
    page = opened("pairs")
    fill(page, "pairs", [*TEXTS, 'With "quotes", a comma'])
    page.select_option("#pairs-by", "k")
    page.click("#pairs [type=submit]")
    page.wait_for_selector("#pairs .list")
    assert server.bodies("/pairs")[-1]["k"] == 20
    assert "4 pairs out of 10 compared in 1.3 s" in page.inner_text("#pairs [data-status]")
    scores = "#pairs tbody td:first-child"
    assert page.inner_text(scores).startswith("0.950")
    page.click("#pairs th button >> text=Score")
    assert page.get_attribute("#pairs th", "aria-sort") == "ascending"
    assert page.inner_text(scores).startswith("0.920")
    with page.expect_download() as kept:
        page.click("#pairs >> text=Download CSV")
    rows = list(csv.DictReader(io.StringIO(kept.value.path().read_text(encoding="utf-8"))))
    assert [row["right_text"] for row in rows] == [*TEXTS[1:], 'With "quotes", a comma']
    with page.expect_download() as kept:
        page.click("#pairs >> text=Download JSON")
    assert json.loads(kept.value.path().read_text(encoding="utf-8"))["compared"] == 10


@browser_needed
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "first text\n\nsecond text\r\n"),
        ("a.csv", 'id,text\n1,"first\ntext"\n2,second text\n'),
        ("a.tsv", "first text\nsecond text\n"),
        ("a.jsonl", '{"id": 1, "text": "first text"}\n"second text"\n'),
        ("a.json", '["first text", {"text": "second text", "n": 3}]'),
    ],
)
def test_a_file_gives_its_texts(opened, server, name, content):
    page = opened("clusters")
    file = {"name": name, "mimeType": "text/plain", "buffer": content.encode()}
    page.set_input_files("#clusters input[type=file]", file)
    page.wait_for_selector("#clusters .file b")
    page.click("#clusters [type=submit]")
    page.wait_for_selector("#clusters .map")
    result = [text.replace("\n", " ") for text in server.bodies("/clusters")[-1]["texts"]]
    assert result == ["first text", "second text"]


@browser_needed
def test_a_dropped_file_is_taken_and_a_broken_one_explained(opened):
    page = opened("pairs")
    drop = """([name, content]) => {
        const data = new DataTransfer();
        data.items.add(new File([content], name));
        const box = document.querySelector("#pairs .texts");
        box.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }"""
    page.evaluate(drop, ["bad.jsonl", "{}\nnonsense"])
    expect(page.locator("#pairs .count")).to_contain_text("Line 2 is not JSON")
    page.evaluate(drop, ["good.csv", "left;right\nshort;a longer text\nx;another long text\n"])
    page.wait_for_selector("#pairs .file b")
    assert page.inner_text("#pairs .file li") == "a longer text"
    page.select_option("#pairs-column", "0")
    assert page.inner_text("#pairs .file li") == "short"
    page.uncheck("#pairs-header")
    assert page.inner_text("#pairs .count") == "3 texts"


@browser_needed
def test_the_map_is_read_by_pointing_and_by_keys(opened):
    page = opened("clusters")
    page.click("#clusters [data-examples]")
    page.wait_for_selector("#clusters .map")
    box = page.locator("#clusters .map").bounding_box()
    page.locator("#clusters .map").scroll_into_view_if_needed()
    page.focus("#clusters .map")
    page.keyboard.press("ArrowDown")
    assert "A man is playing a guitar" in page.inner_text("#clusters .tip")
    page.keyboard.press("ArrowDown")
    assert "guitar on the stage" not in page.inner_text("#clusters .tip")
    assert page.text_content("#clusters .map [aria-live]") != ""
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert box["width"] == pytest.approx(box["height"], abs=2)
    names = page.locator("#clusters .groups .name").all_text_contents()
    assert names == ["theme 0", "theme 1", "theme 2", "In no cluster"]


@browser_needed
def test_the_server_is_polled_only_while_its_tab_is_open(opened, server):
    page = opened("server", own_clock=True)
    expect(page.locator("#server .now").first).to_contain_text("812")
    expect(page.locator("#server .facts")).to_contain_text("tiny-model")
    facts = page.inner_text("#server .facts")
    assert "1 h 2 min" in facts
    assert f"{server.url}/v1/embeddings" in page.inner_text("#server pre")
    with page.expect_response("**/status"):
        page.clock.run_for(1000)
    page.click("#tab-pairs")
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    page.clock.run_for(5000)
    page.click("#pairs [data-examples]")
    page.wait_for_selector("#pairs .list")
    assert [url.removeprefix(server.url) for url in requested] == ["/pairs"]


@browser_needed
def test_a_key_is_requested_and_kept_for_the_tab(opened, server):
    server.wants_key = True
    page = opened(expect_refusals=True)
    page.wait_for_selector("#key-dialog[open]")
    assert page.inner_text("#key-title") == "This server needs an API key"
    page.keyboard.type("wrong-key")
    page.keyboard.press("Enter")
    expect(page.locator("#key-title")).to_have_text("This key was not accepted")
    assert "The server does not know the key that you entered." in page.inner_text("#key-dialog")
    assert "Bearer" not in page.inner_text("#key-dialog")  # that is for programs
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", KEY)
    page.keyboard.press("Enter")
    expect(page.locator("#model")).to_have_text("tiny-model")
    assert page.evaluate("sessionStorage.getItem('gemel-key')") == KEY
    assert page.evaluate("localStorage.length") == 0
    page.reload()
    expect(page.locator("#model")).to_have_text("tiny-model")
    assert not page.is_visible("#key-dialog")


@browser_needed
def test_an_error_is_shown_with_the_message_of_the_server(opened, server):
    server.fails = "Too much is waiting."
    page = opened("pairs", expect_refusals=True)
    page.click("#pairs [data-examples]")
    page.wait_for_selector("#pairs .status.bad")
    assert page.inner_text("#pairs .status") == "Too much is waiting. Try again in 3 s."
    assert page.is_enabled("#pairs [type=submit]")


@browser_needed
def test_a_long_job_can_be_canceled(opened, server):
    server.holds = lambda path, body: path == "/pairs"
    page = opened("pairs")
    page.click("#pairs [data-examples]")
    page.click("#pairs [data-cancel]")
    assert page.inner_text("#pairs .status") == "Canceled."
    assert page.is_enabled("#pairs [type=submit]")
    server.holds = lambda path, body: False


@browser_needed
def test_everything_is_reached_with_the_keyboard_alone(opened):
    page = opened()
    page.focus("#tab-search")
    for name in [*TABS[1:], "search"]:
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == f"tab-{name}"
        assert page.is_visible(f"#{name}")
        assert page.url.endswith(f"#{name}")
    page.keyboard.press("End")
    assert page.is_visible("#server")
    page.keyboard.press("Home")
    page.keyboard.press("Tab")  # past the other tabs: they are one stop
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.press("Tab")
    page.keyboard.press("End")  # the last choice: the texts below
    page.wait_for_selector("#search-texts")
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
        if seen[-1] == "Examples":
            break
    assert seen[-1] == "Examples"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector("#search .hit")


@browser_needed
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast_and_every_control_a_name(opened, scheme):
    page = opened(color_scheme=scheme, reduced_motion="reduce")
    for tab in TABS:
        show(page, tab)
        assert page.evaluate(CONTRAST, 4.5) == []
        assert page.evaluate(UNNAMED) == []


@browser_needed
def test_no_tab_is_wider_than_a_phone(opened):
    width = 360
    page = opened(viewport={"width": width, "height": 740})
    for tab in TABS:
        show(page, tab)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
        last = page.locator("#tab-server").bounding_box()
        assert last["x"] + last["width"] <= width


@browser_needed
def test_a_table_that_is_too_wide_for_a_phone_says_that_it_scrolls(opened):
    page = opened("compare", viewport={"width": 360, "height": 740})
    page.fill("#left", "a man plays music")
    page.fill("#right", " ".join(f"word{at}" for at in range(9)))
    page.wait_for_selector("#compare .heat")
    expect(page.locator("#compare .sideways")).to_be_visible()
    box = page.locator("#compare .scroll")
    expect(box).to_have_class("scroll more")
    box.evaluate("node => { node.scrollLeft = node.scrollWidth; }")
    expect(box).to_have_class("scroll")  # the end is reached
    page.set_viewport_size({"width": 1280, "height": 900})
    expect(page.locator("#compare .sideways")).to_be_hidden()


@browser_needed
def test_the_theme_follows_the_system_until_it_is_chosen(opened):
    page = opened(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    assert page.get_attribute("#theme", "aria-checked") == "true"
    page.click("#theme")
    light = page.evaluate(paper)
    assert light != dark
    page.reload()
    assert page.evaluate(paper) == light
    page.emulate_media(color_scheme="light")
    page.click("#theme")
    assert page.evaluate(paper) == dark


@browser_needed
def test_reduced_motion_is_respected(opened):
    page = opened(reduced_motion="reduce")
    assert page.evaluate("getComputedStyle(document.querySelector('#tab-search')).transitionDuration") == "0s"


@browser_needed
def test_a_script_in_the_page_is_refused_by_the_policy(opened, browser, server):
    context = browser.new_context()
    page = context.new_page()
    messages = []
    page.on("console", lambda message: messages.append(message.text))
    page.goto(server.url)
    attempt = "() => { try { document.body.%s; return 'done'; } catch (error) { return error.name; } }"
    assert page.evaluate(attempt % "innerHTML = '<b>x</b>'") == "TypeError"
    assert page.evaluate(attempt % "setAttribute('onclick', 'window.ran = 1')") == "TypeError"
    page.evaluate(attempt % "setAttribute('style', 'color: red')")
    assert page.evaluate("document.body.style.color") == ""
    assert any("style-src 'self'" in text for text in messages)
    context.close()


@browser_needed
def test_every_tab_works_with_the_real_server(opened, tmp_path):
    tiny_bert(tmp_path)
    with live(app_of(make_services(gemel.load(tmp_path)))) as address:
        page = opened("search", address=address)
        for tab in TABS:
            show(page, tab)
            assert page.locator(f"#{tab} .status.bad").count() == 0
        assert page.inner_text("#model") != ""
        assert "Running for" in page.inner_text("#server .facts")
        assert page.locator("#server .now", has_text="–").count() == 0


@browser_needed
def test_the_real_server_asks_for_a_key_but_not_for_the_page(opened, tmp_path):
    tiny_bert(tmp_path)
    keys = read_keys(None, f"friend:{KEY}", None)
    with live(app_of(make_services(gemel.load(tmp_path)), keys=keys)) as address:
        page = opened("search", address=address, expect_refusals=True)
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key", KEY)
        page.keyboard.press("Enter")
        expect(page.locator("#model")).not_to_have_text("")
