//! Operates a page: ranges, filters, sorting, addresses, the keyboard. The figures are those of the command line.

use crate::browser::Browser;
use crate::{Served, is_browser, opened, record, total};
use common::Scene;
use serde_json::{Value, json};

#[test]
fn figures_and_steps_are_right_in_a_browser() {
    if !is_browser("figures_and_steps_are_right_in_a_browser") {
        return;
    }
    let scene = Scene::new("ui-steps");
    let served = Served::start(&scene, &[record(&scene)]);
    let browser = Browser::start(&scene.path("chromium"));
    let id = opened(&browser, &served);
    browser.looks(1400, 900, "light");
    a_brush_is_a_filter(&browser, &scene, &id);
    a_table_sorts_and_filters(&browser, &id);
    a_flame_graph_zooms_and_finds(&browser, &id);
    filters_are_those_of_the_command_line(&browser, &scene, &id);
    every_column_sorts(&browser, &id);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn addresses_keys_and_mappings_are_right_in_a_browser() {
    if !is_browser("addresses_keys_and_mappings_are_right_in_a_browser") {
        return;
    }
    let scene = Scene::new("ui-addresses");
    let served = Served::start(&scene, &[record(&scene)]);
    let browser = Browser::start(&scene.path("chromium"));
    let id = opened(&browser, &served);
    browser.looks(1400, 900, "light");
    the_keyboard_suffices(&browser, &id);
    mappings_are_those_of_the_command_line(&browser, &scene, &id);
    addresses_lead_to_the_same(&browser, &id);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Waits for a request of the page and returns a figure of it: what the overview was made of.
fn head(browser: &Browser, id: &str, name: &str) -> Value {
    browser.run(&format!(
        "const r = new XMLHttpRequest(); r.open('GET', '/api/v1/{id}/head' + location.hash.replace(/^[^?]*/, ''), false); r.send(); return JSON.parse(r.responseText).totals.{name}"
    ))
}

fn a_brush_is_a_filter(browser: &Browser, scene: &Scene, id: &str) {
    browser.hash(&format!("#/overview/{id}"));
    assert_eq!(head(browser, id, "allocations"), total(scene, &[], "allocations"));
    browser.drag(".series .over", 0.2, 0.7);
    let range = browser.run("[...new URLSearchParams(location.hash.split('?')[1])].filter(([n]) => n === 'from' || n === 'to').map(([, v]) => v)");
    let (from, to) = (range[0].as_str().expect("from"), range[1].as_str().expect("to"));
    let filter = ["--from", from, "--to", to];
    for name in ["allocations", "allocated_bytes", "live_bytes"] {
        assert_eq!(head(browser, id, name), total(scene, &filter, name), "{name} of {filter:?}");
    }
    let allocated = browser.text(".figures-row > :nth-child(4) .sub");
    let sum = total(scene, &filter, "allocations") + total(scene, &filter, "reallocations");
    assert!(allocated.replace(',', "").starts_with(&format!("{sum} ")), "{allocated}, not {sum}");
    assert_eq!(browser.run("document.querySelectorAll('.chip').length"), 2);
    browser.run("history.back()");
    browser.until("the filter is gone", "document.querySelectorAll('.chip').length === 0");
    browser.settled();
}

fn a_table_sorts_and_filters(browser: &Browser, id: &str) {
    browser.hash(&format!("#/allocations/{id}"));
    browser.click("[data-key=sort-allocations]");
    let sorted = browser.run("[...document.querySelectorAll('table.data tbody tr')].map((r) => Number(r.children[4].firstChild.textContent.replaceAll(',', '')))");
    let values: Vec<u64> =
        sorted.as_array().expect("rows").iter().filter_map(Value::as_u64).collect();
    assert!(values.len() > 3 && values.is_sorted_by(|a, b| a >= b), "{values:?}");
    let digest = "document.querySelector('main').innerText";
    let before = browser.run(digest);
    let address = browser.run("location.href");
    browser.leave();
    browser.open(address.as_str().expect("an address"));
    assert_eq!(browser.run(digest), before, "the address does not lead to the same page");
    // By the keyboard alone: a row, its stack, and a filter by it.
    browser.keys(&["j", "Enter"]);
    browser.until("the stack is open", "location.hash.startsWith('#/stack/')");
    browser.settled();
    assert!(browser.text("ol.frames").contains("main"));
    browser.keys(&["g", "a"]);
    browser.until("the list is back", "location.hash.startsWith('#/allocations/')");
    browser.settled();
    browser.keys(&["j", "x"]);
    browser.until("a chip is there", "document.querySelectorAll('.chip').length === 1");
    browser.settled();
    assert_eq!(browser.run("document.querySelectorAll('table.data tbody tr').length"), 1);
    browser.click(".chip-close");
    browser.keys(&["?"]);
    assert!(browser.text("dialog.help").contains("next row"));
    browser.keys(&["Escape"]);
    browser.run("document.querySelector('dialog') && document.querySelector('dialog').close()");
}

fn a_flame_graph_zooms_and_finds(browser: &Browser, id: &str) {
    browser.hash(&format!("#/flame/{id}?metric=allocated"));
    browser.run("document.querySelector('.flame-canvas').focus()");
    browser.keys(&["ArrowDown", "ArrowDown", "Enter"]);
    let crumbs = "document.querySelectorAll('.crumbs button').length";
    assert_eq!(browser.run(crumbs), 3, "the root, and two below it");
    let zoomed = browser.run("location.hash.includes('z=')");
    assert_eq!(zoomed, true);
    browser.run("history.back()");
    browser.until("the zoom is undone", "!location.hash.includes('z=')");
    browser.settled();
    assert_eq!(browser.run(crumbs), 1);
    browser.run("const i = document.querySelector('.page-flame input[type=search]'); i.value = 'large'; i.dispatchEvent(new Event('input'));");
    let found = browser.text(".page-flame [role=status].figures");
    // Ten blocks of 5,000 bytes.
    assert!(found.contains("48.8 KiB"), "{found}");
    browser.keys(&["Escape"]);
}

/// Sets a filter in the editor, as one would type it.
fn set_filter(browser: &Browser, name: &str, value: &str) {
    browser.run("document.querySelector('.add-filter').click()");
    let field = json!(format!("#field-{name}"));
    browser.run(&format!(
        "const s = document.querySelector('dialog.editor input[type=search]'); s.value = {}; s.dispatchEvent(new Event('input')); const f = document.querySelector({field}); f.value = {}; f.dispatchEvent(new Event('input'));",
        json!(name),
        json!(value)
    ));
    assert_eq!(browser.run("document.querySelector('dialog [type=submit]').disabled"), false);
    browser.click("dialog.editor [type=submit]");
}

fn filters_are_those_of_the_command_line(browser: &Browser, scene: &Scene, id: &str) {
    for (name, value) in [
        ("min-size", "1k"),
        ("lifetime", "leaked"),
        ("function", "large|brief"),
        ("max-lifetime", "1h"),
        ("min-chain-length", "2"),
    ] {
        browser.hash(&format!("#/overview/{id}"));
        set_filter(browser, name, value);
        assert_eq!(browser.run("document.querySelectorAll('.chip').length"), 1, "{name}");
        let filter = [&format!("--{name}"), value];
        for figure in ["allocations", "live_bytes", "peak_bytes"] {
            let (here, there) = (head(browser, id, figure), total(scene, &filter, figure));
            assert_eq!(here, there, "{figure} of {filter:?}");
        }
    }
    // A value that is none is refused before it is sent.
    browser.run("document.querySelector('.add-filter').click()");
    browser.run("const s = document.querySelector('dialog.editor input[type=search]'); s.value = 'min-size'; s.dispatchEvent(new Event('input')); const f = document.querySelector('#field-min-size'); f.value = 'large'; f.dispatchEvent(new Event('input'));");
    assert_eq!(browser.run("document.querySelector('dialog [type=submit]').disabled"), true);
    browser.run("document.querySelector('dialog').close()");
}

/// Returns the figures of a column, in the order of the rows.
fn column(browser: &Browser, heading: &str) -> Vec<f64> {
    let rows = browser.run(&format!(
        "const n = [...document.querySelectorAll('table.data thead th')].findIndex((t) => t.innerText.replace(/[▲▼\\s]+$/, '') === {}); return [...document.querySelectorAll('table.data tbody tr:not(.detail)')].map((r) => r.children[n].firstChild.textContent)",
        json!(heading)
    ));
    let texts = rows.as_array().cloned().unwrap_or_default();
    texts.iter().map(|t| figure(t.as_str().unwrap_or_default())).collect()
}

/// Reads a figure as the page writes it: with a unit, separators, or "–" for none.
fn figure(text: &str) -> f64 {
    let (number, unit) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    let Ok(number) = number.replace(',', "").trim_end_matches('%').parse::<f64>() else {
        return f64::INFINITY;
    };
    let factor = match unit {
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => 1.0,
    };
    number * factor
}

fn every_column_sorts(browser: &Browser, id: &str) {
    let cases = [
        ("allocations", "live", "Live"),
        ("allocations", "blocks", "Blocks"),
        ("allocations", "peak", "Peak"),
        ("allocations", "allocated", "Allocated"),
        ("allocations", "allocations", "Allocations"),
        ("allocations", "temporary", "Temporary"),
        ("allocations?by=none", "time", "Allocated"),
        ("allocations?by=none", "size", "Size"),
        ("maps", "size", "Size"),
        ("maps", "rss", "Resident"),
        ("maps", "peak", "Peak resident"),
    ];
    for (page, key, heading) in cases {
        let (name, query) = page.split_once('?').unwrap_or((page, ""));
        browser.hash(&format!("#/{name}/{id}?{query}"));
        let is_up = || {
            let button = format!("document.querySelector('[data-key=sort-{key}]')");
            browser.run(&format!("{button}.closest('th').getAttribute('aria-sort')")) == "ascending"
        };
        browser.click(&format!("[data-key=sort-{key}]"));
        for turn in 0..2 {
            let (up, values) = (is_up(), column(browser, heading));
            assert!(values.len() > 2, "{page}: {values:?}");
            // Rows without a value come last in both directions.
            let valued: Vec<f64> = values.iter().copied().filter(|v| *v > 0.0).collect();
            let sorted = valued.is_sorted_by(|a, b| if up { a <= b } else { a >= b });
            assert!(sorted, "{page} by {key}, up: {up}: {values:?}");
            browser.click(&format!("[data-key=sort-{key}]"));
            assert_ne!(is_up(), up, "{page}: {key} does not turn round ({turn})");
        }
    }
}

/// Every state is in the address: opened anew, it shows the same.
fn addresses_lead_to_the_same(browser: &Browser, id: &str) {
    for page in [
        "overview?from=20%25&to=80%25&series=live_bytes,allocations,growth&by=function",
        "overview?start=1000&end=20000000",
        "allocations?by=function&sort=allocations&reverse=true&count=20",
        "allocations?by=none&full=true&sort=size&count=20&skip=20",
        "allocations?cols=live,leaked,first,name&min-size=100",
        "flame?metric=allocated&dir=up&q=large&full=true&order=name&tab=flame",
        "flame?metric=allocated&t=merge:small~drop:brief",
        "tree?dir=up&sort=allocations",
        "leaks?tab=too-young",
        "diff?bf=0&bt=50%25&af=50%25&at2=100%25&sort=allocations",
        "maps?sort=peak-rss&executable=yes",
        "space?mode=age",
        "sizes?lifetime=freed",
    ] {
        let (name, query) = page.split_once('?').unwrap_or((page, ""));
        browser.hash(&format!("#/{name}/{id}?{query}"));
        let (before, address) = (drawn(browser), browser.run("location.href"));
        browser.leave();
        browser.open(address.as_str().expect("an address"));
        assert_eq!(drawn(browser), before, "{page}");
    }
    // The back button goes through the steps.
    browser.hash(&format!("#/allocations/{id}"));
    let first = digest(browser);
    // The browser passes over steps that nobody has made by hand.
    for key in ["by-function", "sort-allocations"] {
        browser.run(&format!("document.querySelector('[data-key={key}]').focus()"));
        browser.keys(&["Enter"]);
    }
    assert_ne!(digest(browser), first);
    browser.back();
    browser.back();
    assert_eq!(digest(browser), first);
}

/// Returns what a page shows when nothing has been added for a while: charts are drawn in frames after their figures have
/// come.
fn drawn(browser: &Browser) -> Value {
    let mut last = digest(browser);
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(200));
        let now = digest(browser);
        if now == last {
            break;
        }
        last = now;
    }
    last
}

/// Returns what a page shows: its texts, the filter, and what is pressed and chosen.
fn digest(browser: &Browser) -> Value {
    browser.run("[document.querySelector('.filterbar')?.innerText, document.querySelector('main').innerText, [...document.querySelectorAll('[aria-pressed=true], [aria-sort], :checked, option:checked')].map((e) => e.dataset.key || e.innerText)]")
}

/// All is reached without a pointer.
fn the_keyboard_suffices(browser: &Browser, id: &str) {
    browser.hash(&format!("#/overview/{id}"));
    let active = "document.activeElement.dataset.key || document.activeElement.className || document.activeElement.tagName";
    // From the top: the link past the navigation, then each thing in turn, each with a visible focus.
    let address = browser.run("location.href");
    browser.leave();
    browser.open(address.as_str().expect("an address"));
    let mut reached = Vec::new();
    for _ in 0..60 {
        browser.keys(&["Tab"]);
        let now = browser.run(active).as_str().unwrap_or_default().to_owned();
        let outline = browser.run("getComputedStyle(document.activeElement).outlineStyle !== 'none' || document.activeElement.matches('canvas')");
        assert_eq!(outline, true, "the focus on {now} can't be seen");
        reached.push(now);
        if reached.iter().any(|r| r == "over") {
            break;
        }
    }
    for wanted in
        ["skip", "theme", "help", "nav-flame", "share", "series-rss", "series-more", "over"]
    {
        assert!(reached.iter().any(|r| r.contains(wanted)), "no {wanted} in {reached:?}");
    }
    // A range by the arrow keys.
    let mut keys = vec!["ArrowLeft"; 3];
    keys.push("Shift");
    browser.keys(&keys[..3]);
    for _ in 0..12 {
        browser.devtools(
            "Input.dispatchKeyEvent",
            json!({ "type": "keyDown", "key": "ArrowRight", "code": "ArrowRight", "modifiers": 8 }),
        );
    }
    browser.keys(&["Enter"]);
    browser.until("a range is chosen", "document.querySelectorAll('.chip').length === 2");
    // The menu of a row, the tree, and the pages by their keys.
    browser.hash(&format!("#/overview/{id}"));
    browser.keys(&["g", "a"]);
    browser.until("the list", "location.hash.startsWith('#/allocations/')");
    browser.settled();
    browser.keys(&["j", "m"]);
    assert!(browser.text(".menu").contains("Only blocks of this stack"));
    browser.keys(&["ArrowDown", "Enter"]);
    browser.until("a filter by the stack", "location.hash.includes('stacks=')");
    browser.keys(&["g", "t"]);
    browser.until("the tree", "location.hash.startsWith('#/tree/')");
    browser.settled();
    browser.run("document.querySelector('.tree-row[tabindex=\"0\"]').focus()");
    browser.keys(&["ArrowLeft"]);
    assert_eq!(browser.run("document.activeElement.getAttribute('aria-expanded')"), "false");
    browser.keys(&["ArrowRight"]);
    assert_eq!(browser.run("document.activeElement.getAttribute('aria-expanded')"), "true");
    for (key, page) in [
        ("f", "flame"),
        ("m", "maps"),
        ("s", "space"),
        ("l", "leaks"),
        ("d", "diff"),
        ("h", "threads"),
        ("z", "sizes"),
        ("o", "overview"),
    ] {
        browser.keys(&["g", key]);
        browser.until(page, &format!("location.hash.startsWith('#/{page}/')"));
    }
    browser.keys(&["/"]);
    browser.settled();
}

fn mappings_are_those_of_the_command_line(browser: &Browser, scene: &Scene, id: &str) {
    for (query, options) in [
        ("", &["--bytehound", "no"][..]),
        ("bytehound=yes", &["--bytehound", "yes"]),
        ("executable=yes", &["--executable", "yes", "--bytehound", "no"]),
        (
            "min-size=1m&writable=yes",
            &["--min-size", "1m", "--writable", "yes", "--bytehound", "no"],
        ),
        ("name=libc", &["--name", "libc"]),
    ] {
        let all = ["maps", "r.prof", "-n", "0", "--format", "json", "--lifetime", "all"];
        let args = [&all[..], options].concat();
        let there: Value =
            serde_json::from_str(&scene.prof(&args).ok("prof maps").stdout).expect("JSON");
        let maps = there["maps"].as_array().expect("mappings");
        browser.hash(&format!("#/maps/{id}?count=500&sort=size&{query}"));
        let shown = browser.run("[...document.querySelectorAll('table.data tbody tr')].map((r) => r.firstChild.innerText)");
        let here: Vec<&str> =
            shown.as_array().expect("rows").iter().filter_map(Value::as_str).collect();
        let wanted: Vec<String> = maps
            .iter()
            .map(|m| format!("{:#x}", m["address"].as_u64().expect("an address")))
            .collect();
        assert_eq!(here, wanted, "{query}");
    }
    // One mapping: its regions and readings, and the blocks in it.
    browser.hash(&format!("#/maps/{id}?sort=peak-rss&name=libc"));
    let link = browser.run("document.querySelector('tr[data-href]').dataset.href");
    let link = link.as_str().expect("a mapping of libc").to_owned();
    let n = link.split(['/', '?']).nth(3).expect("an id").to_owned();
    browser.hash(&link);
    assert!(browser.text("main").contains("libc"), "{}", browser.text("main"));
    let of_one =
        scene.prof(&["maps", "r.prof", "--map", &n, "--format", "json"]).ok("prof maps").stdout;
    let of_one: Value = serde_json::from_str(&of_one).expect("JSON");
    let one = &of_one["maps"][0];
    let tables = browser
        .run("[...document.querySelectorAll('table.data')].map((t) => t.tBodies[0].rows.length)");
    assert_eq!(tables[0], one["regions"].as_array().expect("regions").len());
    assert_eq!(tables[1], one["usage_history"].as_array().expect("readings").len());
    browser.run("[...document.querySelectorAll('a.button')].find((a) => a.innerText === 'Allocations in it').click()");
    browser.until("the blocks in it", "location.hash.includes('from-map=')");
    browser.settled();
    assert_eq!(head(browser, id, "allocations"), total(scene, &["--from-map", &n], "allocations"));
    // A filter of blocks alone does not count here, and says so; it is kept.
    browser.hash(&format!("#/maps/{id}?part=1&min-size=1k"));
    assert_eq!(browser.run("document.querySelectorAll('.chip.off').length"), 1);
    browser.keys(&["g", "a"]);
    browser.until("the list", "location.hash.startsWith('#/allocations/')");
    browser.settled();
    assert_eq!(browser.run("document.querySelectorAll('.chip:not(.off)').length"), 2);
}
