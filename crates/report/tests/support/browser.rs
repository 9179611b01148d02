// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do tests drive a real browser?
//!
//! Headless Chromium, spoken to over its debugging pipe (messages of JSON that
//! end in a zero byte), so that no port is opened.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// Texts whose contrast to the ground that they stand on is too low (WCAG AA asks for 4.5).
const CONTRAST: &str = "(() => {
    const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
    const light = (c) => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const poor = new Set();
    for (const e of document.querySelectorAll('h1, h2, h3, p, li, th, td, small, span, summary, button:not(:disabled), a:not(.skip), .flame div, dt, dd')) {
        if (!e.textContent.trim() || e.closest('.sr, [hidden], .above, .hit')) continue;
        const layers = [];
        for (let n = e; n; n = n.parentElement) layers.push(parse(getComputedStyle(n).backgroundColor));
        let ground = [255, 255, 255];
        for (const [r, g, b, a] of layers.reverse()) ground = [r * a + ground[0] * (1 - a), g * a + ground[1] * (1 - a), b * a + ground[2] * (1 - a)];
        const ink = parse(getComputedStyle(e).color).slice(0, 3);
        const [x, y] = [light(ink), light(ground)].sort((p, q) => q - p);
        const contrast = (x + 0.05) / (y + 0.05);
        if (contrast < 4.5) poor.add(`${e.tagName}.${e.className} ${contrast.toFixed(2)} ${e.textContent.slice(0, 30)}`);
    }
    return [...poor];
})()";

pub struct Browser {
    child: Child,
    input: ChildStdin,
    output: Receiver<Value>,
    next_id: u64,
    session: Option<String>,
    /// Events seen while something else was waited for.
    pub events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts Chromium with one empty page.
    pub fn start() -> Self {
        let program = ["chromium", "chromium-browser", "google-chrome"]
            .into_iter()
            .find(|name| {
                std::env::var_os("PATH").is_some_and(|path| {
                    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
                })
            })
            .expect("Chromium is needed for this test: setup/packages.sh test installs it");
        let profile = tempfile::tempdir().expect("a directory for the browser");
        // The browser wants its pipe as descriptors 3 and 4; the shell puts
        // our two ends of stdin and stdout there.
        let mut child = Command::new("sh")
            .arg("-c")
            .arg("exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null")
            .arg(program)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-extensions",
                "--disable-sync",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-default-apps",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts the browser");
        let input = child.stdin.take().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(stdout).split(0) {
                let Ok(message) = message else { break };
                let value = serde_json::from_slice(&message).expect("the browser speaks JSON");
                if sender.send(value).is_err() {
                    break;
                }
            }
        });
        let mut browser = Self {
            child,
            input,
            output,
            next_id: 0,
            session: None,
            events: vec![],
            _profile: profile,
        };
        let target = browser.ask("Target.createTarget", json!({"url": "about:blank"}));
        let session = browser.ask(
            "Target.attachToTarget",
            json!({"targetId": target["targetId"], "flatten": true}),
        );
        browser.session = session["sessionId"].as_str().map(String::from);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    fn receive(&mut self, what: &str) -> Value {
        self.output
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|e| panic!("no answer from the browser to {what}: {e}"))
    }

    /// One command, its result.
    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.input.write_all(&bytes).expect("the browser listens");
        loop {
            let answer = self.receive(method);
            if answer["id"] == json!(id) {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    /// Loads a file and waits until it is complete.
    pub fn open(&mut self, file: &Path) {
        self.visit(&format!("file://{}", file.display()));
    }

    /// The same with an address.
    pub fn visit(&mut self, address: &str) {
        self.events.clear();
        self.ask("Page.navigate", json!({"url": address}));
        while !self
            .events
            .iter()
            .any(|e| e["method"] == "Page.loadEventFired")
        {
            let event = self.receive("the page's load");
            self.events.push(event);
        }
    }

    /// The value of an expression.
    pub fn eval(&mut self, expression: &str) -> Value {
        let answer = self.ask(
            "Runtime.evaluate",
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true}),
        );
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {}",
            answer["exceptionDetails"]
        );
        answer["result"]["value"].clone()
    }

    pub fn text(&mut self, expression: &str) -> String {
        let value = self.eval(expression);
        value
            .as_str()
            .unwrap_or_else(|| panic!("{expression} is {value}, not text"))
            .to_owned()
    }

    /// What can hardly be read, in words.
    pub fn poor_contrasts(&mut self) -> serde_json::Value {
        self.eval(CONTRAST)
    }

    pub fn number(&mut self, expression: &str) -> f64 {
        let value = self.eval(expression);
        value
            .as_f64()
            .unwrap_or_else(|| panic!("{expression} is {value}, not a number"))
    }

    /// A key by its name (Enter, ArrowDown, Tab …) or a character.
    pub fn key(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            "Escape" => 27,
            "Home" => 36,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            " " => 32,
            _ => 0,
        };
        let mut down = json!({"type": "keyDown", "key": key, "windowsVirtualKeyCode": code});
        if key.chars().count() == 1 {
            down["text"] = json!(key);
        } else if key == "Enter" {
            down["text"] = json!("\r");
        }
        self.ask("Input.dispatchKeyEvent", down);
        self.ask(
            "Input.dispatchKeyEvent",
            json!({"type": "keyUp", "key": key, "windowsVirtualKeyCode": code}),
        );
    }

    fn mouse(&mut self, kind: &str, x: f64, y: f64, buttons: u32) {
        self.ask(
            "Input.dispatchMouseEvent",
            json!({"type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1}),
        );
    }

    /// The middle of the first element that the selector finds, in view.
    ///
    /// Two frames are drawn before it answers: the mouse's events are aimed by
    /// what the last frame showed, which on a busy machine is the page before
    /// it was scrolled.
    pub fn middle(&mut self, selector: &str) -> (f64, f64) {
        let place = self.eval(&format!(
            "(async () => {{ const e = document.querySelector({selector:?}); if (!e) return null; e.scrollIntoView({{block: 'center', behavior: 'instant'}}); const frame = () => new Promise((then) => requestAnimationFrame(then)); await frame(); await frame(); const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }})()"
        ));
        let at = |i: usize| {
            place[i]
                .as_f64()
                .unwrap_or_else(|| panic!("nothing is {selector}"))
        };
        (at(0), at(1))
    }

    /// With the mouse.
    pub fn click(&mut self, selector: &str) {
        let (x, y) = self.middle(selector);
        self.mouse("mouseMoved", x, y, 0);
        self.mouse("mousePressed", x, y, 1);
        self.mouse("mouseReleased", x, y, 0);
    }

    pub fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.mouse("mouseMoved", from.0, from.1, 0);
        self.mouse("mousePressed", from.0, from.1, 1);
        self.mouse("mouseMoved", (from.0 + to.0) / 2.0, to.1, 1);
        self.mouse("mouseMoved", to.0, to.1, 1);
        self.mouse("mouseReleased", to.0, to.1, 0);
    }

    /// Sets the colour scheme that the system asks for.
    pub fn scheme(&mut self, scheme: &str) {
        self.ask(
            "Emulation.setEmulatedMedia",
            json!({"features": [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]}),
        );
    }

    pub fn size(&mut self, width: u32, height: u32) {
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}),
        );
    }

    /// The whole page as a picture.
    pub fn picture(&mut self, file: &Path) {
        let answer = self.ask(
            "Page.captureScreenshot",
            json!({"format": "png", "captureBeyondViewport": true}),
        );
        self.write(file, &answer["data"]);
    }

    pub fn pdf(&mut self, file: &Path) {
        let answer = self.ask("Page.printToPDF", json!({"printBackground": true}));
        self.write(file, &answer["data"]);
    }

    fn write(&self, file: &Path, data: &Value) {
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(data.as_str().expect("encoded bytes"))
            .expect("base64");
        std::fs::write(file, bytes).expect("writes the picture");
    }

    /// Everything that the page complained about, and every address it asked
    /// for besides its own.
    pub fn complaints(&mut self) -> Vec<String> {
        // An answer comes after the events that were under way.
        self.eval("1");
        let mut list = Vec::new();
        for event in &self.events {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or("") {
                "Runtime.exceptionThrown" => {
                    list.push(params["exceptionDetails"].to_string());
                }
                "Runtime.consoleAPICalled" => list.push(params["args"].to_string()),
                "Log.entryAdded" => list.push(params["entry"].to_string()),
                "Network.requestWillBeSent" if params["type"] != "Document" => {
                    list.push(format!("asked for {}", params["request"]["url"]));
                }
                _ => {}
            }
        }
        list
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        let bytes = b"{\"id\":0,\"method\":\"Browser.close\"}\0";
        let asked = self.input.write_all(bytes).is_ok();
        if !asked {
            // It is gone already, or ends when its pipe does.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
