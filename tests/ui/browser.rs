//! A browser that is driven by tests: Debian's chromium, by its driver, without a window.

use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Time that a page may take until it shows something. Test machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command of the driver that fantoccini has no function for.
#[derive(Debug)]
struct Raw(&'static str, Value);

impl WebDriverCompatibleCommand for Raw {
    fn endpoint(
        &self,
        base: &url::Url,
        session: Option<&str>,
    ) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.0))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.1.to_string()))
    }
}

/// A browser and its driver, which both end with it.
pub(crate) struct Browser {
    runtime: Runtime,
    client: Client,
    driver: Child,
}

impl Browser {
    /// Starts the browser, with its profile in a folder.
    pub(crate) fn start(profile: &Path) -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver");
        let lines = BufReader::new(driver.stdout.take().expect("a pipe")).lines();
        let port = lines
            .map_while(Result::ok)
            .find_map(|l| l.split_once("successfully on port ").map(|(_, p)| p.to_owned()))
            .expect("chromedriver's port");
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1400,900",
            "--force-device-scale-factor=1",
            &format!("--user-data-dir={}", profile.display()),
        ];
        let capabilities = json!({
            "goog:chromeOptions": { "args": args },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let Value::Object(capabilities) = capabilities else { unreachable!("an object") };
        let driver_url = format!("http://127.0.0.1:{}", port.trim_end_matches('.'));
        let runtime = Runtime::new().expect("a runtime");
        let mut builder =
            ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new());
        let connecting = builder.capabilities(capabilities).connect(&driver_url);
        let client = runtime.block_on(connecting).expect("a session");
        Self { runtime, client, driver }
    }

    /// Makes the driver do what fantoccini has no function for.
    fn raw(&self, path: &'static str, body: Value) -> Value {
        self.runtime
            .block_on(self.client.issue_cmd(Raw(path, body)))
            .unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// Gives a command of the browser's own protocol.
    pub(crate) fn devtools(&self, command: &str, params: Value) -> Value {
        self.raw("goog/cdp/execute", json!({ "cmd": command, "params": params }))
    }

    /// Goes to an address and waits until its page has drawn.
    pub(crate) fn open(&self, address: &str) {
        self.runtime
            .block_on(self.client.goto(address))
            .unwrap_or_else(|e| panic!("{address}: {e}"));
        self.settled();
    }

    /// Leaves the page, so that what it keeps in memory is gone.
    pub(crate) fn leave(&self) {
        self.runtime.block_on(self.client.goto("about:blank")).expect("an empty page");
    }

    /// Goes to another page of what is open.
    pub(crate) fn hash(&self, hash: &str) {
        self.moved(&format!("location.hash = {}", json!(hash)));
    }

    /// Goes back by one step.
    pub(crate) fn back(&self) {
        self.moved("history.back()");
    }

    /// Runs a statement that changes the address, and waits until the page has seen that and has drawn.
    fn moved(&self, statement: &str) {
        let script = format!(
            "await new Promise((seen) => {{ for (const e of ['hashchange', 'popstate']) addEventListener(e, () => setTimeout(seen), {{ once: true }}); setTimeout(seen, 400); {statement}; }})"
        );
        self.devtools(
            "Runtime.evaluate",
            json!({ "expression": format!("(async () => {{ {script} }})()"), "awaitPromise": true }),
        );
        self.settled();
    }

    /// Waits until the page that the address names has drawn all its parts.
    #[track_caller]
    pub(crate) fn settled(&self) {
        self.until("the page has drawn", "Boolean(document.querySelector('main > .page[data-ready]')) && !document.querySelector('[aria-busy], .page.coming')");
    }

    /// Runs an expression, or statements that may return something, and returns its value.
    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> Value {
        let whole = format!(
            "return (() => {{ {} }})()",
            if script.contains('\n') || script.contains("; ") {
                script.to_owned()
            } else {
                format!("return ({script})")
            }
        );
        self.runtime
            .block_on(self.client.execute(&whole, Vec::new()))
            .unwrap_or_else(|e| panic!("{script}: {e}"))
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, expression: &str) {
        let start = Instant::now();
        while self.run(expression) != Value::Bool(true) {
            if start.elapsed() > PATIENCE {
                panic!(
                    "{what}: not within {PATIENCE:?}: {}\n{}",
                    self.run("location.href"),
                    self.run("document.body.innerText")
                );
            }
            std::thread::sleep(Duration::from_millis(40));
        }
    }

    /// Returns the text of the first element that a selector finds.
    #[track_caller]
    pub(crate) fn text(&self, selector: &str) -> String {
        let text =
            self.run(&format!("(document.querySelector({}) || {{}}).innerText", json!(selector)));
        text.as_str().unwrap_or_else(|| panic!("there is no {selector}")).to_owned()
    }

    /// Clicks on the first element that a selector finds.
    #[track_caller]
    pub(crate) fn click(&self, selector: &str) {
        let found = self.run(&format!(
            "const e = document.querySelector({}); if (e) e.click(); return Boolean(e)",
            json!(selector)
        ));
        assert_eq!(found, Value::Bool(true), "there is no {selector}");
        self.settled();
    }

    /// Moves the pointer over an element with its button down, between two parts of its width.
    pub(crate) fn drag(&self, selector: &str, from: f64, to: f64) {
        let r = self.run(&format!("const r = document.querySelector({}).getBoundingClientRect(); return [r.left, r.top, r.width, r.height]", json!(selector)));
        let at = |i: usize| r[i].as_f64().expect("a number");
        let y = at(1) + at(3) / 2.0;
        for (kind, part, buttons) in [
            ("mouseMoved", from, 0),
            ("mousePressed", from, 1),
            ("mouseMoved", (from + to) / 2.0, 1),
            ("mouseMoved", to, 1),
            ("mouseReleased", to, 0),
        ] {
            let x = at(0) + part * at(2);
            let clicks = u32::from(kind != "mouseMoved");
            self.devtools("Input.dispatchMouseEvent", json!({ "type": kind, "x": x, "y": y, "button": if buttons == 1 || clicks == 1 { "left" } else { "none" }, "buttons": buttons, "clickCount": clicks }));
        }
        self.settled();
    }

    /// Presses keys, one after the other.
    pub(crate) fn keys(&self, keys: &[&str]) {
        for key in keys {
            let text = if key.chars().count() == 1 { json!(key) } else { Value::Null };
            let mut down = json!({ "type": "keyDown", "key": key, "code": key });
            if *key == "Enter" {
                down["text"] = json!("\r");
            } else if !text.is_null() {
                down["text"] = text;
            }
            self.devtools("Input.dispatchKeyEvent", down);
            self.devtools(
                "Input.dispatchKeyEvent",
                json!({ "type": "keyUp", "key": key, "code": key }),
            );
        }
        std::thread::sleep(Duration::from_millis(60));
        self.settled();
    }

    /// Sets the size of the window and the colours that the system prefers.
    pub(crate) fn looks(&self, width: u32, height: u32, scheme: &str) {
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false }),
        );
        self.devtools(
            "Emulation.setEmulatedMedia",
            json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] }),
        );
    }

    /// Writes a picture of what the window shows.
    pub(crate) fn picture(&self, file: &Path) {
        let png = self.runtime.block_on(self.client.screenshot()).expect("a picture");
        std::fs::write(file, png).expect("written");
    }

    /// Returns what the page has said on the console since the last call: errors, warnings, and what its policy
    /// refused.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.raw("se/log", json!({ "type": "browser" }));
        let lines = log.as_array().cloned().unwrap_or_default();
        let bad =
            lines.iter().filter(|l| matches!(l["level"].as_str(), Some("SEVERE" | "WARNING")));
        bad.filter_map(|l| l["message"].as_str().map(str::to_owned)).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.runtime.block_on(self.client.clone().close());
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
