// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox agent` over OTLP: is what arrives what happened, also by the word of OpenTelemetry's own
//! collector, and does the agent go on whatever becomes of it?

use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::{metric::Data, number_data_point};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

mod collector;
#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;
#[path = "../../../tests/needs.rs"]
mod needs;
mod running;

use collector::{Collector, Does, Seen, nobody, until};
use running::{Agent, debox, run, sleeper, values};

/// A reading: by Prometheus' names.
type Reading = BTreeMap<String, f64>;
/// By when they were read, in nanoseconds.
type Readings = BTreeMap<u64, Reading>;
type Labels = Vec<(String, String)>;

/// What changes from one reading to the next though nothing happens.
fn is_own(series: &str) -> bool {
    series.starts_with("debox_agent_report_seconds") || series.starts_with("debox_otlp_")
}

fn series(name: &str, unit: &str, is_sum: bool, labels: &[(String, String)]) -> String {
    let unit = match unit {
        "s" => "_seconds",
        "By" => "_bytes",
        "1" => "_ratio",
        _ => "",
    };
    let end = if is_sum { "_total" } else { "" };
    let name = format!("{}{unit}{end}", name.replace('.', "_"));
    let labels: Vec<String> = (labels.iter())
        .map(|(key, value)| format!("{key}=\"{value}\""))
        .collect();
    match labels.is_empty() {
        true => name,
        false => format!("{name}{{{}}}", labels.join(",")),
    }
}

/// "a_seconds{b="c"}" with `end` behind the name.
fn part_of(series: &str, end: &str) -> String {
    match series.split_once('{') {
        Some((name, labels)) => format!("{name}{end}{{{labels}"),
        None => format!("{series}{end}"),
    }
}

fn labels_of(attributes: Vec<KeyValue>) -> Labels {
    let text = |value: any_value::Value| match value {
        any_value::Value::StringValue(text) => text,
        other => panic!("{other:?}"),
    };
    (attributes.into_iter())
        .map(|is| (is.key, text(is.value.unwrap().value.unwrap())))
        .collect()
}

/// By when they were read.
fn readings(seen: &[Seen]) -> Readings {
    let mut all: Readings = BTreeMap::new();
    for metric in seen.iter().filter(|is| is.taken).flat_map(Seen::metrics) {
        let (points, is_sum) = match metric.data.unwrap() {
            Data::Sum(sum) => (sum.data_points, true),
            Data::Gauge(gauge) => (gauge.data_points, false),
            Data::ExponentialHistogram(all_of) => {
                for point in all_of.data_points {
                    let labels = labels_of(point.attributes);
                    let name = series(&metric.name, &metric.unit, false, &labels);
                    let reading = all.entry(point.time_unix_nano).or_default();
                    for (end, value) in
                        [("_count", point.count as f64), ("_sum", point.sum.unwrap())]
                    {
                        assert_eq!(reading.insert(part_of(&name, end), value), None);
                    }
                }
                continue;
            }
            other => panic!("{other:?}"),
        };
        for point in points {
            let labels = labels_of(point.attributes);
            let value = match point.value.unwrap() {
                number_data_point::Value::AsDouble(value) => value,
                number_data_point::Value::AsInt(value) => value as f64,
            };
            let series = series(&metric.name, &metric.unit, is_sum, &labels);
            let reading = all.entry(point.time_unix_nano).or_default();
            assert_eq!(reading.insert(series, value), None);
        }
    }
    all
}

/// A reading (`take`: one from a moment on) between two answers to Prometheus that are the same: some figures are told
/// as a period ends.
fn same_as_prometheus(
    agent: &Agent,
    what: &str,
    take: impl Fn(u64) -> Option<(u64, Reading)>,
) -> Reading {
    let told = |text: String| -> BTreeMap<String, f64> {
        values(&text)
            .into_iter()
            .map(|(series, value)| (series.to_owned(), value))
            .filter(|(series, _)| !is_own(series) && !series.contains("_bucket{"))
            .collect()
    };
    for _ in 0..10 {
        let before = told(agent.metrics());
        let at = now_ns();
        let (_, whole) = until(what, || take(at));
        if before == told(agent.metrics()) {
            let mut reading = whole.clone();
            reading.retain(|series, _| !is_own(series));
            assert_eq!(reading, before);
            return whole;
        }
    }
    panic!("{what}: the figures do not stand still");
}

fn attribute<'a>(record: &'a LogRecord, key: &str) -> &'a str {
    let found = record.attributes.iter().find(|is| is.key == key);
    match found.and_then(|is| is.value.as_ref()?.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text,
        other => panic!("{key}: {other:?} in {record:?}"),
    }
}

fn config(watch: &str, endpoint: &str, more: &str) -> String {
    format!(
        "[[policy]]\nname = \"web\"\n{watch}\n[flight]\ndirectory = \"FOLDER/flight\"\n\
         [metrics]\nlisten = \"127.0.0.1:0\"\n[otlp]\nendpoint = \"{endpoint}\"\n{more}\n"
    )
}

fn again(agent: &mut Agent, text: &str) {
    let folder = agent.folder.path().to_str().unwrap();
    let file = agent.folder.path().join("agent.toml");
    std::fs::write(file, text.replace("FOLDER", folder)).unwrap();
    agent.signal(libc::SIGHUP);
    agent.says("read again");
}

fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64
}

#[test]
fn figures_and_moments_arrive() {
    if !needs::bpf() {
        return;
    }
    let http = Collector::http(None);
    let watch = "comm = [\"dbq-*\"]\nperiod = \"2s\"";
    let more = "every = \"1s\"\nheaders = { authorization = \"Bearer sesame\" }\n\
                [[flight.when]]\nlabel = \"nanosleep\"\nabove = \"600ms\"";
    let mut agent = Agent::start(&config(watch, &http.endpoint(), more));
    run(&sleeper(agent.folder.path(), "dbq-one"), "1.5");
    let records = |server: &Collector, event: &str| -> Vec<LogRecord> {
        let all = server.seen().into_iter().flat_map(|is| is.logs());
        all.filter(|record| record.event_name == event).collect()
    };
    let kept = until("something is kept", || records(&http, "debox.kept").pop());
    assert_eq!(kept.severity_text, "WARN");
    assert!(
        attribute(&kept, "debox.kept.why").starts_with("label nanosleep: "),
        "{kept:?}"
    );
    let folder = Path::new(attribute(&kept, "debox.kept.folder"));
    assert!(folder.join("why").exists(), "{kept:?}");
    let recording = Path::new(attribute(&kept, "debox.recording"));
    assert!(recording.exists() && folder.join(recording.file_name().unwrap()).exists());
    // Each period has its record, which begins where the last one ended.
    let periods = until("three periods", || {
        let periods = records(&http, "debox.period");
        (periods.len() >= 3).then_some(periods)
    });
    for two in periods.windows(2) {
        let gap = two[1].time_unix_nano - two[0].time_unix_nano;
        assert!((1_000_000_000..5_000_000_000).contains(&gap), "{gap}");
        for record in two {
            assert!(
                Path::new(attribute(record, "debox.recording")).exists(),
                "{record:?}"
            );
        }
    }
    // The program has ended: what was read before it was asked for is what is read after.
    let take = |at| {
        let mut seen = readings(&http.seen()).into_iter();
        seen.find(|(when, _)| *when > at)
    };
    let reading = same_as_prometheus(&agent, "a later reading", take);
    let slept =
        "debox_blocked_seconds_total{label=\"nanosleep\",call=\"clock_nanosleep\",class=\"idle\"}";
    assert!((1.4..30.0).contains(&reading[slept]), "{reading:?}");
    for request in http.seen() {
        assert_eq!(request.headers["authorization"], "Bearer sesame");
    }
    let text = agent.metrics();
    let sent = values(&text)["debox_otlp_sent_total{signal=\"metrics\"}"];
    assert!(sent > 0.0, "{text}");
    // Another place, and the other protocol.
    let grpc = Collector::grpc(None);
    let text = config(
        watch,
        &grpc.endpoint(),
        "every = \"1s\"\nprotocol = \"grpc\"",
    );
    again(&mut agent, &text);
    until("a reading there", || readings(&grpc.seen()).pop_last());
    let directory = agent.folder.path().join("flight");
    let said = debox(&["snapshot", "--directory", directory.to_str().unwrap()]);
    let said = String::from_utf8(said.stdout).unwrap();
    let kept = until("the snapshot", || records(&grpc, "debox.kept").pop());
    assert_eq!(attribute(&kept, "debox.kept.folder"), said.trim_end());
    assert_eq!(
        (
            attribute(&kept, "debox.kept.why"),
            kept.severity_text.as_str()
        ),
        ("asked for", "INFO")
    );
    // And none, as long as it is asked for nothing.
    again(&mut agent, &config(watch, "", ""));
    std::thread::sleep(Duration::from_secs(1));
    let before = grpc.seen().len();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(grpc.seen().len(), before);
    again(&mut agent, &text);
    let at = now_ns();
    assert_eq!(agent.end(), Some(0));
    // What is read at the end arrives as well, and the last period.
    let (last, _) = readings(&grpc.seen()).pop_last().unwrap();
    assert!(last >= at, "{last} {at}");
    let period = records(&grpc, "debox.period").pop().unwrap();
    assert!(period.time_unix_nano >= at - 1_000_000_000, "{period:?}");
}

/// The figures for whoever asks, the periods and the recordings go on as if nothing were sent.
#[test]
fn a_server_that_hangs_delays_nothing() {
    if !needs::bpf() {
        return;
    }
    let hangs = Collector::http(None);
    hangs.does((0..1_000).map(|_| Does::Hang));
    let text = config(
        "comm = [\"dbr-*\"]\nperiod = \"2s\"",
        &hangs.endpoint(),
        "every = \"1s\"\ntimeout = \"10m\"",
    );
    let mut agent = Agent::start(&text);
    until("it is asked", || (!hangs.seen().is_empty()).then_some(()));
    let begin = Instant::now();
    let mut longest = Duration::ZERO;
    while begin.elapsed() < Duration::from_secs(10) {
        let asked = Instant::now();
        agent.ask("/metrics");
        longest = longest.max(asked.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    let flight = std::fs::read_dir(agent.folder.path().join("flight")).unwrap();
    let names = flight.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let whole = names.filter(|name| name.ends_with("Z.web.debox")).count();
    assert!(whole >= 4, "{whole}");
    let begin = Instant::now();
    assert_eq!(agent.end(), Some(0));
    // Three seconds for what is queued.
    assert!(
        begin.elapsed() < Duration::from_secs(15),
        "{:?}",
        begin.elapsed()
    );
    assert!(hangs.seen().len() <= 2);
}

/// The real one (tests/otlp/collector), which writes what it took into a file.
struct Real {
    process: Child,
    out: PathBuf,
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            let said = std::fs::read_to_string(self.out.with_file_name("collector.log"));
            eprintln!("{}", said.unwrap_or_default());
        }
    }
}

/// Where it takes what.
struct Places {
    http: SocketAddr,
    grpc: SocketAddr,
    http_tls: SocketAddr,
    grpc_tls: SocketAddr,
}

impl Real {
    fn start(program: &Path, folder: &Path, places: &Places) -> Self {
        let out = folder.join("out.json");
        let at = folder.display();
        let tls = format!("tls: {{cert_file: {at}/cert.pem, key_file: {at}/key.pem}}");
        let text = format!(
            "receivers:\n  otlp:\n    protocols:\n      http: {{endpoint: '{}'}}\n      grpc: {{endpoint: '{}'}}\n  \
             otlp/tls:\n    protocols:\n      http: {{endpoint: '{}', {tls}}}\n      grpc: {{endpoint: '{}', {tls}}}\n\
             exporters:\n  file: {{path: {}, flush_interval: 100ms}}\n\
             service:\n  telemetry: {{metrics: {{level: none}}, logs: {{level: warn}}}}\n  pipelines:\n    \
             metrics: {{receivers: [otlp, otlp/tls], exporters: [file]}}\n    \
             logs: {{receivers: [otlp, otlp/tls], exporters: [file]}}\n",
            places.http,
            places.grpc,
            places.http_tls,
            places.grpc_tls,
            out.display()
        );
        Self::run(program, folder, &text)
    }

    fn run(program: &Path, folder: &Path, config: &str) -> Self {
        let out = folder.join("out.json");
        let file = folder.join("collector.yaml");
        std::fs::write(&file, config).unwrap();
        let process = Command::new(program)
            .arg(format!("--config={}", file.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.join("collector.log")).unwrap())
            .spawn()
            .unwrap();
        Self { process, out }
    }

    /// What it took: objects of resourceMetrics and of resourceLogs.
    fn took(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&self.out).unwrap_or_default();
        // The last line may be on its way.
        let lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// ClickHouse's engine behind HTTP (debox-fleet's tests have it), which OpenTelemetry's exporter writes to.
struct Database {
    process: Child,
    url: String,
    port: String,
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Database {
    fn start(python: &Path, folder: &Path) -> Self {
        let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fleet/tests/server.py");
        let mut process = Command::new(python)
            .arg(server)
            .arg(folder.join("database"))
            .args(["ann", "s:@ /"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut port)
            .unwrap();
        let port = port.trim().to_owned();
        let url = format!("http://ann:s%3A%40%20%2F@127.0.0.1:{port}");
        Self { process, url, port }
    }

    fn fleet(&self, words: &[&str]) -> serde_json::Value {
        let program = Path::new(env!("CARGO_BIN_EXE_debox-agent")).with_file_name("debox-fleet");
        let output = Command::new(program)
            .arg("fleet")
            .args(words)
            .args(["--url", &self.url, "--json"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {said}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn list(value: &serde_json::Value) -> Vec<serde_json::Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn labels(value: &serde_json::Value) -> Labels {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    (list(value).iter())
        .map(|is| (text(&is["key"]), text(&is["value"]["stringValue"])))
        .collect()
}

/// The same readings, in the collector's words; and of which resources.
fn collected(took: &[serde_json::Value]) -> (Readings, BTreeSet<Labels>) {
    let mut readings: Readings = BTreeMap::new();
    let mut resources = BTreeSet::new();
    for resource in took.iter().flat_map(|is| list(&is["resourceMetrics"])) {
        resources.insert(labels(&resource["resource"]["attributes"]));
        let scopes = list(&resource["scopeMetrics"]);
        for metric in scopes.iter().flat_map(|scope| list(&scope["metrics"])) {
            let is_sum = metric.get("sum").is_some();
            let data = if is_sum {
                &metric["sum"]
            } else {
                &metric["gauge"]
            };
            if is_sum {
                assert_eq!(
                    (&data["aggregationTemporality"], &data["isMonotonic"]),
                    (&2.into(), &true.into())
                );
            }
            let unit = metric["unit"].as_str().unwrap_or_default();
            for point in list(&metric["exponentialHistogram"]["dataPoints"]) {
                let number = |key: &str| point[key].as_str().unwrap().parse::<u64>().unwrap();
                let name = metric["name"].as_str().unwrap();
                let name = series(name, unit, false, &labels(&point["attributes"]));
                let reading = readings.entry(number("timeUnixNano")).or_default();
                let sum = point["sum"].as_f64().unwrap();
                for (end, value) in [("_count", number("count") as f64), ("_sum", sum)] {
                    assert_eq!(reading.insert(part_of(&name, end), value), None);
                }
            }
            for point in list(&data["dataPoints"]) {
                let number = |key: &str| point[key].as_str()?.parse::<u64>().ok();
                let value = match point.get("asDouble") {
                    Some(value) => value.as_f64().unwrap(),
                    None => number("asInt").unwrap() as f64,
                };
                let time = number("timeUnixNano").unwrap();
                assert_eq!(
                    is_sum,
                    number("startTimeUnixNano").is_some_and(|begin| begin > 0 && begin <= time)
                );
                let name = metric["name"].as_str().unwrap();
                let series = series(name, unit, is_sum, &labels(&point["attributes"]));
                let reading = readings.entry(time).or_default();
                assert_eq!(reading.insert(series, value), None);
            }
        }
    }
    (readings, resources)
}

fn records(took: &[serde_json::Value]) -> Vec<serde_json::Value> {
    let resources = took.iter().flat_map(|is| list(&is["resourceLogs"]));
    let scopes = resources.flat_map(|is| list(&is["scopeLogs"]));
    scopes.flat_map(|is| list(&is["logRecords"])).collect()
}

/// OpenTelemetry's own, with the kernel side to have something for it.
fn collector_or_skip() -> Option<PathBuf> {
    if !needs::bpf() {
        return None;
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/otel-collector");
    if !program.exists() {
        needs::not_run("no OpenTelemetry collector is built: make setup-all builds it");
        return None;
    }
    Some(program)
}

#[test]
fn opentelemetrys_own_collector_takes_it() {
    let Some(program) = collector_or_skip() else {
        return;
    };
    let places = Places {
        http: nobody(),
        grpc: nobody(),
        http_tls: nobody(),
        grpc_tls: nobody(),
    };
    let watch = "comm = [\"dbu-*\"]\nperiod = \"2s\"";
    let every = "every = \"1s\"\nattributes = { \"host.name\" = \"web-1\" }";
    let begin = now_ns();
    let mut agent = Agent::start(&config(watch, &format!("http://{}", places.http), every));
    let folder = agent.folder.path().to_owned();
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ])
        .args([
            "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=test",
        ])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        // An authority's own certificate would be no server's.
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .current_dir(&folder)
        .stderr(Stdio::null())
        .status();
    assert!(made.unwrap().success());
    // Nobody is there for half a minute.
    let one = sleeper(&folder, "dbu-one");
    run(&one, "0.5");
    agent.says("cannot be sent to");
    std::thread::sleep(Duration::from_secs(30));
    let real = Real::start(&program, &folder, &places);
    let up = now_ns();
    // What was read meanwhile is there, each second of it.
    let (all, resources) = until("it takes what waited", || {
        let (all, resources) = collected(&real.took());
        all.last_key_value()
            .is_some_and(|(at, _)| *at > up)
            .then_some((all, resources))
    });
    let times: Vec<u64> = all.keys().copied().collect();
    assert!(
        times.len() >= 25 && times[0] < begin + 20_000_000_000,
        "{times:?}"
    );
    for two in times.windows(2) {
        assert!(two[1] - two[0] < 5_000_000_000, "{times:?}");
    }
    assert_eq!(resources.len(), 1);
    let resource: BTreeMap<String, String> = resources.into_iter().flatten().collect();
    for (key, value) in [
        ("service.name", "debox-agent"),
        ("host.name", "web-1"),
        ("service.instance.id", "web-1"),
    ] {
        assert_eq!(resource[key], value);
    }
    assert_eq!(resource["debox.boot.id"].len(), 36);
    let text = agent.metrics();
    let mut told = values(&text);
    told.retain(|series, _| series.starts_with("debox_otlp_dropped_total"));
    assert_eq!(told.len(), 8, "{text}");
    assert!(told.values().all(|dropped| *dropped == 0.0), "{text}");
    // Over each way: the values are Prometheus'.
    for (place, more) in [
        (format!("http://{}", places.http), String::new()),
        (
            format!("http://{}", places.grpc),
            "protocol = \"grpc\"".to_owned(),
        ),
        (
            format!("https://{}", places.http_tls),
            format!("ca_file = \"{}/cert.pem\"", folder.display()),
        ),
        (
            format!("https://{}", places.grpc_tls),
            format!(
                "protocol = \"grpc\"\nca_file = \"{}/cert.pem\"",
                folder.display()
            ),
        ),
    ] {
        again(
            &mut agent,
            &config(watch, &place, &format!("{every}\n{more}")),
        );
        run(&one, "0.2");
        same_as_prometheus(&agent, &place, |at| {
            let (all, _) = collected(&real.took());
            all.into_iter().find(|(when, _)| *when > at)
        });
    }
    // Whom nobody trusts, nothing is sent to.
    for protocol in ["http", "grpc"] {
        let at = if protocol == "http" {
            places.http_tls
        } else {
            places.grpc_tls
        };
        again(
            &mut agent,
            &config(
                watch,
                &format!("https://{at}"),
                &format!("{every}\nprotocol = \"{protocol}\""),
            ),
        );
        let said = agent.says("cannot be sent to");
        assert!(
            said.contains("certificate") && said.contains("[otlp] ca_file"),
            "{said}"
        );
    }
    again(
        &mut agent,
        &config(
            watch,
            &format!("http://{}", places.grpc),
            &format!("{every}\nprotocol = \"grpc\""),
        ),
    );
    assert_eq!(agent.end(), Some(0));
    // A record of each period, none missing and none twice, and they say what was waited for.
    let periods: Vec<serde_json::Value> = until("the last period", || {
        let mut records = records(&real.took());
        records.retain(|is| is["eventName"] == "debox.period");
        let last = records.last()?["timeUnixNano"]
            .as_str()?
            .parse::<u64>()
            .ok()?;
        (last + 5_000_000_000 > now_ns() || records.len() > 10_000).then_some(records)
    });
    let times: Vec<u64> = (periods.iter())
        .map(|is| is["timeUnixNano"].as_str().unwrap().parse().unwrap())
        .collect();
    let different: BTreeSet<u64> = times.iter().copied().collect();
    assert_eq!(different.len(), times.len());
    for two in Vec::from_iter(different).windows(2) {
        assert!(two[1] - two[0] < 5_000_000_000, "{times:?}");
    }
    for record in &periods {
        assert!(
            record["body"]["stringValue"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{record}"
        );
        let said: BTreeMap<String, String> = (list(&record["attributes"]).iter())
            .filter_map(|is| {
                Some((
                    is["key"].as_str()?.into(),
                    is["value"]["stringValue"].as_str()?.into(),
                ))
            })
            .collect();
        assert!(
            said["debox.period.begin"] < said["debox.period.end"],
            "{record}"
        );
    }
}

/// The way that docs/fleet.md tells of: the agent, the collector, its ClickHouse exporter, which makes the tables, and
/// `debox fleet load --otel`.
#[test]
fn opentelemetrys_own_exporter_writes_what_the_fleet_is_asked() {
    let Some(program) = collector_or_skip() else {
        return;
    };
    let Some(python) = needs::chdb() else { return };
    let folder = tempfile::tempdir().unwrap();
    let database = Database::start(&python, folder.path());
    let at = nobody();
    let text = format!(
        "receivers:\n  otlp:\n    protocols:\n      http: {{endpoint: '{at}'}}\n\
         exporters:\n  clickhouse: {{endpoint: 'http://127.0.0.1:{}', username: ann, password: 's:@ /', database: otel, \
         compress: none}}\n\
         service:\n  telemetry: {{metrics: {{level: none}}, logs: {{level: warn}}}}\n  pipelines:\n    \
         metrics: {{receivers: [otlp], exporters: [clickhouse]}}\n    \
         logs: {{receivers: [otlp], exporters: [clickhouse]}}\n",
        database.port
    );
    let real = Real::run(&program, folder.path(), &text);
    until("the collector", || std::net::TcpStream::connect(at).ok());
    let more =
        "every = \"1s\"\nattributes = { \"host.name\" = \"web-1\", \"debox.release\" = \"v2\" }";
    let watch = "comm = [\"dot-*\"]\nperiod = \"3s\"\n[[policy]]\nname = \"other\"\ncomm = [\"doz-*\"]\nperiod = \"3s\"";
    let mut agent = Agent::start(&config(watch, &format!("http://{at}"), more));
    let one = sleeper(agent.folder.path(), "dot-one");
    let two = sleeper(agent.folder.path(), "doz-two");
    run(&one, "4");
    run(&two, "2.5");
    let text = agent.metrics();
    let told = values(&text);
    let slept = told["debox_blocked_seconds_total{label=\"nanosleep\",call=\"clock_nanosleep\",class=\"idle\"}"];
    assert!((6.4..9.0).contains(&slept), "{text}");
    let sleeps =
        told["debox_sleeps_total{label=\"nanosleep\",call=\"clock_nanosleep\",class=\"idle\"}"];
    // The last one is there when the one behind it is.
    let top = until("all of it", || {
        database.fleet(&["load", "--otel", "otel"]);
        let words = ["top", "--class", "all", "--by", "host,release,call,label"];
        let top = database.fleet(&words);
        let rows = list(&top["rows"]);
        let row = rows.into_iter().find(|row| row["label"] == "nanosleep")?;
        // A sleep that is not over counts from its begin, and its time comes with the readings.
        let seconds = row["blocked_ns"].as_f64()? / 1e9;
        (row["sleeps"].as_f64() >= Some(sleeps) && seconds > slept - 0.001).then_some(row)
    });
    let seconds = top["blocked_ns"].as_f64().unwrap() / 1e9;
    assert!(seconds < slept + 0.001, "{seconds} {slept}");
    assert_eq!(top["sleeps"].as_f64(), Some(sleeps), "{top}");
    assert_eq!(
        [&top["host"], &top["release"], &top["call"]],
        ["web-1", "v2", "clock_nanosleep"]
    );
    // Whose threads' time it was.
    let top = database.fleet(&["top", "--by", "state,program"]);
    let rows = list(&top["rows"]);
    let of = |program: &str| {
        let is = |row: &&serde_json::Value| row["program"] == program && row["state"] == "blocked";
        let ns = rows.iter().find(is).and_then(|row| row["ns"].as_f64());
        ns.unwrap_or_default() / 1e9
    };
    assert!((3.9..6.0).contains(&of("dot-one")), "{top}");
    assert!((2.4..4.0).contains(&of("doz-two")), "{top}");
    assert_eq!(agent.end(), Some(0));
    // Both policies' periods, with their verdicts.
    let why = until("the last periods", || {
        database.fleet(&["load", "--otel", "otel"]);
        let words = [
            "sql",
            "SELECT count() AS n FROM periods WHERE policy = 'other'",
        ];
        let n = database.fleet(&words)[0]["n"].as_u64()?;
        (n >= 3).then(|| database.fleet(&["why", "--host", "web-1"]))
    });
    let mut policies: Vec<String> = list(&why["policies"])
        .iter()
        .map(|is| is["policy"].as_str().unwrap().to_owned())
        .collect();
    policies.sort_unstable();
    assert_eq!(policies, ["other", "web"], "{why}");
    // Nothing is loaded twice.
    let again = database.fleet(&["load", "--otel", "otel"]);
    let sum = "SELECT sum(blocked_ns) AS ns FROM waits WHERE label = 'nanosleep'";
    let ns = database.fleet(&["sql", sum])[0]["ns"].as_f64().unwrap();
    assert!((ns / 1e9 - slept).abs() < 0.001, "{ns} {slept} {again}");
    drop(real);
}
