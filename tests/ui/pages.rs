//! Every page is drawn, looked at by axe-core, and says what is wrong with what it was asked.

use crate::browser::Browser;
use crate::{Served, folder, is_browser, opened, pictures, record};
use common::Scene;

/// The pages of a recording, as in an address. `{…}` is the first row of another page.
const PAGES: [&str; 29] = [
    "recordings",
    "overview",
    "overview?from=10%25&to=90%25&by=function&series=live_bytes,rss,growth,anonymous",
    "allocations",
    "allocations?by=function&spark=true",
    "allocations?by=size",
    "allocations?by=none&full=true",
    "flame?metric=allocated",
    "flame?dir=up&full=true&color=value",
    "flame?metric=allocated&q=large&tab=flame&order=name",
    "flame?mode=sandwich&fn=large&metric=allocated",
    "flame?metric=allocated&from=50%25&bf=0&bt=50%25",
    "tree",
    "tree?dir=up&sort=allocations",
    "leaks",
    "holds",
    "diff",
    "diff?bf=0&bt=50%25&af=50%25&at2=100%25",
    "threads",
    "sizes",
    "maps",
    "maps?own=true&sort=peak-rss&cols=address,size,pages,thread,name",
    "space",
    "space?mode=age&at=50%25",
    "info",
    "script",
    "stack/{allocations}",
    "block/{allocations?by=none}",
    "map/{maps?sort=peak-rss}",
];

/// Returns the address of a page of a recording.
fn address(browser: &Browser, id: &str, page: &str) -> String {
    let (name, rest) = page.split_once(['?', '/']).unwrap_or((page, ""));
    if let Some(list) = rest.strip_prefix('{') {
        browser.hash(&address(browser, id, list.trim_end_matches('}')));
        let link = browser.run("document.querySelector('tr[data-href]').dataset.href");
        return link.as_str().expect("a link").to_owned();
    }
    if name == "recordings" {
        return "#/recordings".to_owned();
    }
    format!("#/{name}/{id}?{rest}")
}

/// Returns what the page shows in place of a part that failed.
fn failures(browser: &Browser) -> String {
    let texts = "[...document.querySelectorAll('.failed')].map((e) => e.innerText).join()";
    browser.run(texts).as_str().expect("a text").to_owned()
}

#[test]
fn every_page_draws_in_a_browser() {
    if !is_browser("every_page_draws_in_a_browser") {
        return;
    }
    let scene = Scene::new("ui-pages");
    let served = Served::start(&scene, &[record(&scene)]);
    let browser = Browser::start(&scene.path("chromium"));
    let id = opened(&browser, &served);
    for (width, height, scheme) in
        [(1400, 900, "light"), (1400, 900, "dark"), (360, 780, "light"), (3840, 2000, "dark")]
    {
        browser.looks(width, height, scheme);
        for page in PAGES {
            let hash = address(&browser, &id, page);
            browser.hash(&hash);
            assert_eq!(failures(&browser), "", "{hash}");
            let beyond =
                browser.run("Math.max(0, document.documentElement.scrollWidth - innerWidth)");
            assert_eq!(beyond, 0, "{hash} is wider than {width} pixels");
            let said = browser.run("document.querySelector('main').innerText.trim().length > 20");
            assert_eq!(said, true, "{hash} says nothing");
            let file = page.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
            browser.picture(&pictures().join(format!("{file}-{width}-{scheme}.png")));
            assert_eq!(browser.complaints(), Vec::<String>::new(), "{hash}");
        }
    }
}

/// Pages that can't be shown give the reason and a link to go on.
#[test]
fn pages_without_an_answer_say_why_in_a_browser() {
    if !is_browser("pages_without_an_answer_say_why_in_a_browser") {
        return;
    }
    let scene = Scene::new("ui-without");
    let served = Served::start(&scene, &[record(&scene)]);
    let browser = Browser::start(&scene.path("chromium"));
    let id = opened(&browser, &served);
    let main = || browser.text("main");
    browser.hash(&format!("#/allocations/{id}?min-size=1t"));
    assert!(main().contains("Nothing matches"), "{}", main());
    browser.hash(&format!("#/overview/{id}?min-size=1t"));
    assert!(main().contains("No block is live at the end"), "{}", main());
    browser.hash(&format!("#/allocations/{id}?no-such=1&min-size=10"));
    assert!(failures(&browser).contains("no-such"), "{}", failures(&browser));
    browser.click(".failed button.primary");
    assert_eq!(failures(&browser), "", "the filter that nobody knows is removed");
    assert_eq!(browser.run("document.querySelectorAll('.chip').length"), 1);
    browser.hash(&format!("#/allocations/{id}?function=("));
    assert!(failures(&browser).contains("function"), "{}", failures(&browser));
    browser.hash("#/overview/ffff");
    assert!(failures(&browser).contains("There is no recording"), "{}", failures(&browser));
    browser.click(".failed a.button");
    assert!(main().contains("r.prof"), "{}", main());
    browser.hash("#/nowhere");
    assert!(failures(&browser).contains("There is no page"), "{}", failures(&browser));
    browser.hash(&format!("#/block/{id}/123456789"));
    assert!(failures(&browser).contains("Not found"), "{}", failures(&browser));
}

/// Checks that axe-core finds nothing serious, where npm has fetched it.
#[test]
fn nothing_serious_bars_anybody() {
    let axe = folder().join("node_modules/axe-core/axe.min.js");
    if !is_browser("nothing_serious_bars_anybody") {
        return;
    }
    let Ok(axe) = std::fs::read_to_string(&axe) else {
        return eprintln!("nothing_serious_bars_anybody is skipped: npm ci was not run");
    };
    let scene = Scene::new("ui-axe");
    let served = Served::start(&scene, &[record(&scene)]);
    let browser = Browser::start(&scene.path("chromium"));
    let id = opened(&browser, &served);
    for scheme in ["light", "dark"] {
        browser.looks(1400, 900, scheme);
        for page in PAGES {
            browser.hash(&address(&browser, &id, page));
            nothing_serious(&browser, &axe, &format!("{page}, {scheme}"));
        }
        browser.hash(&format!("#/overview/{id}?min-size=10"));
        for (what, button) in [("help", "[data-key=help]"), ("the editor", ".add-filter")] {
            browser.click(button);
            nothing_serious(&browser, &axe, &format!("{what}, {scheme}"));
            browser.run("document.querySelector('dialog[open]').close()");
        }
        browser.run("document.querySelector('[data-key=share]').click()");
        nothing_serious(&browser, &axe, &format!("a menu, {scheme}"));
    }
}

/// Panics if axe-core finds something serious on what is shown.
pub(crate) fn nothing_serious(browser: &Browser, axe: &str, what: &str) {
    browser.devtools("Runtime.evaluate", serde_json::json!({ "expression": axe }));
    browser.devtools(
        "Runtime.evaluate",
        serde_json::json!({ "awaitPromise": true, "expression":
            "axe.run(document, { resultTypes: ['violations'] }).then((r) => { window.found = r.violations.filter((v) => v.impact === 'serious' || v.impact === 'critical').map((v) => v.id + ': ' + v.nodes.map((n) => n.html.slice(0, 160)).slice(0, 3).join(' | ')).join('\\n') })" }),
    );
    assert_eq!(browser.run("window.found"), "", "{what}");
}
