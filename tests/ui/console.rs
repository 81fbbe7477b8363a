//! The console: scripts in the browser.

use crate::browser::Browser;
use crate::{Served, is_browser, opened, record, total};
use common::Scene;
use serde_json::json;

/// Replaces the script, and runs it to its end or to its failure.
fn run(browser: &Browser, code: &str) {
    browser.run(&format!(
        "const a = document.querySelector('.code-area'); a.value = {}; a.dispatchEvent(new Event('input'));",
        json!(code)
    ));
    browser.click("[data-key=script-run]");
    browser
        .until("the script has ended", "document.querySelector('[data-key=script-stop]').disabled");
}

#[test]
fn scripts_run_in_a_browser() {
    if !is_browser("scripts_run_in_a_browser") {
        return;
    }
    let scene = Scene::new("ui-console");
    let served = Served::start(&scene, &[record(&scene)]);
    let browser = Browser::start(&scene.path("chromium"));
    let id = opened(&browser, &served);
    browser.looks(1400, 900, "light");
    browser.hash(&format!("#/script/{id}"));
    let out = || browser.text(".console-out");

    run(&browser, "println(allocations().len());\nprintln(\"<img src=x onerror=hit=1>\");\n");
    let blocks = total(&scene, &[], "allocations") + total(&scene, &[], "reallocations");
    assert!(out().starts_with(&format!("{blocks}\n<img src=x")), "{}", out());
    assert_eq!(browser.run("document.querySelectorAll('.console-out img').length"), 0);

    // An error stands at its place, and the cursor goes there.
    run(&browser, "let a = 1;\n   nothing(a);\n");
    assert!(out().contains("Line 2, column 4"), "{}", out());
    assert_eq!(browser.text(".code-wrong"), "nothing");
    assert_eq!(browser.text(".code-wrong-line").trim(), "2");
    browser.click("[data-key=script-jump]");
    assert_eq!(browser.run("document.querySelector('.code-area').selectionStart"), 14);

    // What never ends is stopped.
    browser.run("const a = document.querySelector('.code-area'); a.value = 'println(1); loop {}'; a.dispatchEvent(new Event('input'));");
    browser.run("document.querySelector('[data-key=script-run]').click()");
    browser.until(
        "output comes while it runs",
        "document.querySelector('.console-out').innerText.startsWith('1')",
    );
    browser.click("[data-key=script-stop]");
    browser.until(
        "it is stopped",
        "document.querySelector('.console-bar').innerText.includes('stopped')",
    );

    // One that waits for its turn says so.
    browser.run(&format!(
        "window.others = new AbortController(); for (const n of [1, 2]) fetch('/api/v1/{id}/script', {{ method: 'POST', \
         headers: {{ 'Content-Type': 'text/plain', 'X-Prof-Client': 'other ' + n }}, signal: others.signal, \
         body: 'println(1); loop {{ allocations().only_larger(1).len(); }}' }}).then(async (r) => {{ const lines = r.body.getReader(); \
         await lines.read(); window.begun = (window.begun || 0) + 1; while (!(await lines.read()).done); }}).catch(() => {{}})"
    ));
    browser.until("the others run", "window.begun === 2");
    browser.click("[data-key=script-run]");
    browser.until(
        "it is told that it waits",
        "document.querySelector('.console-bar').innerText.includes('waiting for its turn (2 run at a time)')",
    );
    browser.run("window.others.abort()");
    browser.until(
        "its turn comes",
        "document.querySelector('.console-bar').innerText.includes('running for')",
    );
    browser.click("[data-key=script-stop]");

    // A graph answers to the pointer; a click on a series shows its blocks.
    run(
        &browser,
        "graph().add(\"Kept\", allocations().only_leaked()).add(\"All\", allocations()).save(\"g.svg\");\n",
    );
    assert_eq!(browser.run("document.querySelectorAll('.console-graph canvas').length"), 2);
    browser.run("document.querySelector('.console-graph .over').focus()");
    browser.keys(&["ArrowRight"]);
    assert!(browser.text(".tip").contains("Kept"), "{}", browser.text(".tip"));
    browser.run("document.querySelector('.console-graph a.key').focus()");
    browser.keys(&["Enter"]);
    browser.until("the blocks of the series", "location.hash.includes('lifetime=leaked')");
    browser.back();
    assert!(out().contains("g.svg"), "the output is still there: {}", out());

    // Names are completed; the script is in the address, and in the history.
    browser.run("const a = document.querySelector('.code-area'); a.focus(); a.value = 'allocations().only_lea'; a.selectionStart = a.selectionEnd = a.value.length; a.dispatchEvent(new Event('input'));");
    browser.until("names", "document.querySelectorAll('.code-names:not([hidden]) li').length > 0");
    browser.keys(&["Enter"]);
    assert_eq!(
        browser.run("document.querySelector('.code-area').value"),
        "allocations().only_leaked()"
    );
    browser.until("the script is in the address", "location.hash.includes('only_leaked')");
    let address = browser.run("location.href");
    browser.leave();
    browser.open(address.as_str().expect("an address"));
    browser.until(
        "the script of the address is there",
        "document.querySelector('.code-area')?.value === 'allocations().only_leaked()'",
    );
    browser.run("document.querySelector('[data-key=script-history]').click()");
    assert!(browser.text(".menu").contains("graph().add"), "{}", browser.text(".menu"));
    browser.keys(&["Escape"]);

    // Each example runs, and so does the script of a filter.
    let examples = "document.querySelector('[data-key=script-examples]')";
    browser.run(&format!("{examples}.click()"));
    let count = browser.run("document.querySelectorAll('.menu button').length").as_u64();
    browser.keys(&["Escape"]);
    for n in 0..count.expect("a number") {
        browser.run(&format!("{examples}.click()"));
        browser.run(&format!("document.querySelectorAll('.menu button')[{n}].click()"));
        browser.click("[data-key=script-run]");
        browser.until(
            "the example has ended",
            "document.querySelector('[data-key=script-stop]').disabled",
        );
        assert!(browser.text(".console-bar").contains("done in"), "example {n}: {}", out());
    }
    browser.hash(&format!("#/script/{id}?min-size=1k&lifetime=leaked"));
    browser.click("[data-key=script-run]");
    browser.until(
        "the script of the filter has ended",
        "document.querySelector('[data-key=script-stop]').disabled",
    );
    assert!(out().contains("large"), "{}", out());
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
