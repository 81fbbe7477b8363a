//! Names in a recording come from the process that was recorded, which may be hostile: they stay text in the browser.

use crate::browser::Browser;
use crate::{Served, is_browser};
use common::build::program;
use common::{Scene, installed, skip};
use std::process::Command;

/// A name of a file that is an element if it is read as HTML.
const FILE: &str = "<img src=x onerror=hit=1>.bin";
/// An argument that ends a script if it is written into one.
const ARGUMENT: &str = "</script><script>hit=2</script>\u{202e}";
/// The name of a function.
const FUNCTION: &str = "<b id=hit>large</b>";
/// The name of the recording's file.
const RECORDING: &str = "'\"><svg onload=hit=3>.prof";

#[test]
fn hostile_names_stay_text_in_a_browser() {
    let test = "hostile_names_stay_text_in_a_browser";
    if !is_browser(test) {
        return;
    }
    if !installed("objcopy") {
        return skip(test, "objcopy is not installed");
    }
    let scene = Scene::new("ui-hostile");
    let hostile = scene.path(FILE);
    let made = Command::new("objcopy")
        .args(["--strip-debug", "--redefine-sym", &format!("large={FUNCTION}")])
        .args([program("figures.c"), hostile.clone()])
        .status();
    assert!(made.expect("objcopy").success());
    let mut c = Command::new(Scene::binary());
    c.args(["run", "-o", RECORDING, "--free-stacks", "--"]).arg(&hostile).arg(ARGUMENT);
    scene.run(c).ok("prof run");
    let served = Served::start(&scene, &[RECORDING]);
    let browser = Browser::start(&scene.path("chromium"));
    let id = crate::opened(&browser, &served);
    let first = |list: String| {
        browser.hash(&list);
        let link = browser.run("document.querySelector('tr[data-href]').dataset.href");
        link.as_str().expect("a link").to_owned()
    };
    let stack = first(format!("#/allocations/{id}"));
    let block = first(format!("#/allocations/{id}?by=none&sort=size"));
    let map = first(format!("#/maps/{id}?name=onerror"));
    let of = |page: &str| {
        let (name, query) = page.split_once('?').unwrap_or((page, ""));
        format!("#/{name}/{id}?{query}")
    };
    for (hash, text) in [
        ("#/recordings".to_owned(), RECORDING),
        (format!("#/overview/{id}?by=function"), FUNCTION),
        (of("overview"), "</script>"),
        (format!("#/allocations/{id}"), FUNCTION),
        (format!("#/allocations/{id}?by=function"), FUNCTION),
        (format!("#/allocations/{id}?by=module"), FILE),
        (format!("#/flame/{id}?full=true&metric=allocated"), FUNCTION),
        (of("tree?dir=up"), FUNCTION),
        (of("leaks"), FUNCTION),
        (of("sizes"), FUNCTION),
        (format!("#/maps/{id}?name=onerror"), FILE),
        (of("info"), "</script>"),
        (stack, FUNCTION),
        (block, FUNCTION),
        (map, FILE),
    ] {
        browser.hash(&hash);
        is_text(&browser, &hash, text);
    }
    // Menus, tooltips and chips show names as well.
    browser.hash(&format!("#/allocations/{id}?function=%3Cimg%20src%3Dx%20onerror%3Dhit%3D4%3E"));
    assert!(browser.text(".filterbar").contains("<img src=x onerror=hit=4>"));
    browser.hash(&format!("#/flame/{id}?metric=allocated"));
    browser.run("document.querySelector('.flame-canvas').focus()");
    browser.keys(&["ArrowDown", "ArrowDown", "m"]);
    is_text(&browser, "a menu", "Focus");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Panics if a page does not show a text, or if a name has become an element or was run.
fn is_text(browser: &Browser, hash: &str, text: &str) {
    let shown = browser.run("document.body.innerText");
    let shown = shown.as_str().expect("a text");
    assert!(shown.contains(text), "{hash} does not show {text}: {shown}");
    let elements = browser
        .run("document.querySelectorAll('img, #hit, svg:not(.icon), body script, iframe').length");
    assert_eq!(elements, 0, "{hash}: a name has become an element");
    assert_eq!(browser.run("typeof window.hit"), "undefined", "{hash}: a name was run");
}
