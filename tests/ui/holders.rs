//! The page of who holds the memory: its tree, its stacks, and what has changed between two scans.

use crate::browser::Browser;
use crate::pages::nothing_serious;
use crate::{Served, folder, is_browser, opened, pictures};
use common::Scene;

#[test]
fn holders_open_and_are_compared_in_a_browser() {
    if !is_browser("holders_open_and_are_compared_in_a_browser") {
        return;
    }
    let scene = Scene::new("ui-holders");
    let (record, _) = scene.with_two_scans();
    let served = Served::start(&scene, &[&record]);
    let browser = Browser::start(&scene.path("chromium"));
    let id = opened(&browser, &served);
    let axe = std::fs::read_to_string(folder().join("node_modules/axe-core/axe.min.js")).ok();
    for (width, height, scheme) in
        [(1400, 900, "light"), (1400, 900, "dark"), (360, 780, "light"), (3840, 2000, "dark")]
    {
        browser.looks(width, height, scheme);
        for (file, query) in [("holds", ""), ("holds-compared", "?scan=2&against=1")] {
            browser.hash(&format!("#/holds/{id}{query}"));
            browser.until(
                "the page is there",
                "document.querySelector('main').innerText.includes('list_head in')",
            );
            browser.settled();
            let beyond =
                browser.run("Math.max(0, document.documentElement.scrollWidth - innerWidth)");
            assert_eq!(beyond, 0, "{file} is wider than {width} pixels");
            browser.picture(&pictures().join(format!("scan-{file}-{width}-{scheme}.png")));
            if let Some(axe) = &axe {
                nothing_serious(&browser, axe, &format!("{file}, {scheme}"));
            }
        }
    }
    browser.looks(1400, 900, "light");
    a_root_opens(&browser, &id);
    a_stack_has_a_way(&browser, &id);
    scans_are_chosen(&browser, &id);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

fn a_root_opens(browser: &Browser, id: &str) {
    browser.hash(&format!("#/holds/{id}?scan=1"));
    let row = "[...document.querySelectorAll('.tree-row')].find((r) => r.innerText.includes('sessions in'))";
    browser.until("the root is there", &format!("Boolean({row})"));
    let below = format!("({row}).parentElement.querySelector('[role=group]').innerText");
    assert_eq!(browser.run(&format!("({row}).getAttribute('aria-expanded')")), "false");
    browser.run(&format!("({row}).querySelector('.twist').click()"));
    browser.until("it is open", &format!("{below}.includes('open_session')"));
    let text = browser.run(&below);
    let text = text.as_str().expect("a text");
    assert!(text.contains("Session") && text.contains("40.0 KiB"), "{text}");
    // By the keyboard: into the row below, which opens as well.
    browser.run(&format!("({row}).focus()"));
    browser.keys(&["\u{e014}", "\u{e014}"]);
    browser.until("the next level is open", &format!("{below}.includes('make_buffer')"));
}

fn a_stack_has_a_way(browser: &Browser, id: &str) {
    browser.hash(&format!("#/holds/{id}?scan=1"));
    browser.until(
        "the stacks are there",
        "document.querySelectorAll('table.data tr.detail').length > 3",
    );
    browser.run("document.querySelector('tr.detail summary').click()");
    browser.until("the chain is there", "document.querySelector('ol.chain li code') !== null");
    let root = browser.text("ol.chain li");
    assert!(root.contains(" in "), "{root}");
}

fn scans_are_chosen(browser: &Browser, id: &str) {
    browser.hash(&format!("#/holds/{id}"));
    browser
        .until("the choice is there", "document.querySelector('[data-key=pick-against]') !== null");
    browser.run(
        "const s = document.querySelector('[data-key=pick-against]'); s.value = '1'; s.dispatchEvent(new Event('change'))",
    );
    browser.until(
        "they are compared",
        "document.querySelector('main').innerText.includes('holds nothing any more')",
    );
    let hash = browser.run("location.hash");
    assert!(hash.as_str().is_some_and(|h| h.contains("against=1")), "{hash}");
    let text = browser.text("main");
    assert!(text.contains("+500 blocks") && text.contains("add_node"), "{text}");
}
