//! The page of a report, opened in a browser where there is a browser.

use std::process::Command;

use evenfall_core::math;

use super::*;

#[test]
fn page_is_self_contained_and_data_cannot_break_out() {
    let directory = Directory::new("page");
    write_run(&directory.0);
    let html = read(&directory.0, None).expect("a report").html();
    assert!(!html.contains("http://") || html.matches("http://").count() == 1, "only SVG's name");
    assert!(!html.contains("https://") && !html.contains("<b>&</b> twenty"));
    assert_eq!(html.matches("</script>").count(), 2);
}

#[test]
fn page_draws_all_charts_in_a_browser_without_errors() {
    let directory = Directory::new("browser");
    write_run(&directory.0);
    let mut report = read(&directory.0, None).expect("a report");
    let curve = |name: &str, rate: f64| ClockCurve {
        name: name.into(),
        at_ns: (0..200).map(|k| START_NS + 20_000_000 * k).collect(),
        moved_us: (0..200).map(|k| rate * f64::from(k)).collect(),
        bound_us: (0..200).map(|k| (k != 90).then_some(1.5)).collect(),
    };
    report.clocks = vec![curve("root", 0.0), curve("receiver-1", -2.0)];
    let Some(dom) = opened("demo", &report.html()) else { return };
    assert!(!dom.contains("data-errors"), "{}", &dom[..dom.len().min(2_000)]);
    assert!(dom.contains("Clocks over time"));
    // The clocks of the logs err by 2 us each, and two of them by 4 us.
    assert!(dom.contains("So the median at release is") && dom.contains("in truth"), "{dom}");
    assert!(dom.contains("data-drawn=\"12\""), "twelve charts are drawn");
    assert_eq!(dom.matches("<svg viewBox").count(), 11, "one of the twelve is a table");
    assert!(
        dom.matches("<path").count() > 10 && !dom.contains("NaN") && !dom.contains("undefined")
    );
}

#[test]
fn run_in_which_nothing_was_held_or_sent_still_makes_a_page() {
    let ledger = Ledger::new(Config::of([NodeId(1)]));
    let outcome = ledger.finish(ClockError::Unknown);
    let (info, logs, memory) = (RunInfo::default(), vec![], vec![]);
    let (clocks, warnings) = (vec![], vec![]);
    let report = Report { info, outcome, logs, memory, clocks, warnings };
    let Some(dom) = opened("empty", &report.html()) else { return };
    assert!(!dom.contains("data-errors") && !dom.contains("NaN"));
    assert!(dom.contains("data-drawn=\"10\""));
}

/// The page's document after its script ran; `None` without a browser.
fn dom_in_chromium(page: &Path, scratch: &Path) -> Option<String> {
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", scratch.join("browser").display()))
        .args(["--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()
        .ok()?;
    let dom = String::from_utf8_lossy(&output.stdout);
    // The elements that the script made, without the script's source and its data.
    let dom = dom.split("<script").next().unwrap_or_default().to_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "chromium failed: {said}");
    Some(dom)
}

/// A report of a run of this size, in which `processes` processes recorded an hour of memory.
fn large(receivers: u32, processes: u32) -> Report {
    let ids = (1..=receivers).map(NodeId);
    let mut ledger = Ledger::new(Config::of(ids.clone()));
    let mut prng = Prng::new(7);
    for message in 0..20 {
        let sent_ns = START_NS + message * GAP_NS;
        let deadline_ns = sent_ns + 190_000;
        ledger.sent(&SentMessage {
            stream: 0,
            message,
            scheduled_ns: sent_ns,
            sent_ns,
            deadline_ns: Some(deadline_ns),
        });
        for receiver in ids.clone() {
            let delay = 60_000.0 + f64::from(receiver.0 % 97) * 800.0 + prng.exponential(3_000.0);
            let arrival_ns = sent_ns + delay as u64;
            ledger.released(&Released {
                receiver,
                first_message: message,
                count: 1,
                arrival_ns,
                release_ns: arrival_ns.max(deadline_ns) + 2_000,
                ..Released::default()
            });
        }
    }
    ledger.close_all();
    let outcome = ledger.finish(ClockError::Within(Duration::from_micros(2)));
    let name = |id: u32| format!("receiver-{id}");
    let node = |id: NodeId| NodeInfo { id, name: name(id.0), role: "receiver".into() };
    let joined = |id: NodeId| event(0.001, "join", id.0, "founder");
    let log = |id: NodeId| LogLine {
        file: format!("receiver-{}.evlog", id.0),
        name: name(id.0),
        role: "receiver".into(),
        records: 20,
        tail: "clean".into(),
    };
    let directory = tempfile::tempdir().expect("a directory");
    let hour = |id: u32| {
        let row = |s: u32| format!("{s}.000,{},0.1\n", 9_000_000 + 1_000 * (s + id));
        let rows: String = (0..3_600).map(row).collect();
        let text = format!("seconds,resident_bytes,cpu_seconds\n{rows}");
        std::fs::write(memory::path(directory.path(), &name(id)), text).expect("a memory log");
        memory::read(directory.path(), &name(id)).expect("a curve")
    };
    Report {
        info: RunInfo {
            title: format!("Multicast to {receivers} receivers"),
            started_unix_s: START_NS / 1_000_000_000,
            nodes: ids.clone().map(node).collect(),
            events: ids.clone().map(joined).collect(),
            ..RunInfo::default()
        },
        outcome,
        logs: ids.map(log).collect(),
        memory: memory::largest((1..=processes).map(hour)),
        clocks: Vec::new(),
        warnings: (0..receivers).map(|id| format!("receiver-{id} left no log")).collect(),
    }
}

/// Opens a page; `EVENFALL_REPORT_TO=DIR` keeps it as `DIR/NAME.html`.
fn opened(name: &str, html: &str) -> Option<String> {
    let directory = Directory::new(name);
    let page = directory.0.join("report.html");
    std::fs::write(&page, html).expect("a page");
    if let Some(to) = std::env::var_os("EVENFALL_REPORT_TO") {
        std::fs::copy(&page, Path::new(&to).join(format!("{name}.html"))).expect("a copy");
    }
    let dom = dom_in_chromium(&page, &directory.0);
    if dom.is_none() {
        println!("skipped: no chromium");
    }
    dom
}

#[test]
fn five_thousand_receivers_and_an_hour_of_memory_are_drawn_with_few_elements() {
    let html = large(5_000, 35).html();
    assert!(html.len() < 4 << 20, "a page of {} bytes", html.len());
    let Some(dom) = opened("large", &html) else { return };
    assert!(!dom.contains("data-errors"), "{}", &dom[..dom.len().min(2_000)]);
    assert!(dom.contains("Memory over time") && dom.contains("data-drawn=\"11\""));
    let shapes = ["<path", "<line", "<circle", "<rect", "<text"];
    let shapes: usize = shapes.iter().map(|shape| dom.matches(shape).count()).sum();
    assert!(shapes < 500, "{shapes} shapes are drawn");
    assert!(dom.contains("200 of 5,000 receivers"), "long tables are cut");
    assert!(dom.contains("and 200 of 4,994 more"), "long lists of warnings are cut");
}

#[test]
fn memory_of_any_number_of_processes_takes_a_bounded_page() {
    let curves = large(2, 200).memory;
    assert_eq!(curves.len(), memory::CURVES_MAX);
    assert!(curves.iter().all(|curve| curve.seconds.len() <= memory::POINTS_MAX));
}

#[test]
fn page_begins_with_the_verdict_and_the_date() {
    let report = large(3, 1);
    let Some(dom) = opened("verdict", &report.html()) else { return };
    let verdict = verdict::sentence(&report);
    assert!(verdict.starts_with("Fair: 100 % of messages reached all 3 receivers"), "{verdict}");
    let at = dom.find(&verdict).expect("the verdict is on the page");
    assert!(at < dom.find("class=\"tiles\"").expect("tiles"));
    assert!(dom.contains("2025-07-20 08:26:40 UTC"));
}

#[test]
fn picture_that_fails_says_so_on_the_page_and_the_others_are_drawn() {
    let html = large(3, 1)
        .html()
        .replace("function fairOverTime() {", "function fairOverTime() { null.x;");
    let Some(dom) = opened("broken", &html) else { return };
    assert!(dom.contains("id=\"alert\" role=\"alert\""), "an alert is shown");
    assert!(dom.contains("This picture could not be drawn"));
    assert!(dom.contains("Delay by receiver") && dom.contains("Delivery window"));
    let html = large(3, 1).html().replace("\"outcome\":", "\"outkome\":");
    let dom = opened("broken-data", &html).expect("a browser");
    assert!(dom.contains("id=\"alert\" role=\"alert\""), "an alert is shown: {dom}");
}

#[test]
fn keyboard_reaches_every_picture_and_reads_its_values_aloud() {
    let press = r#"<script>
      const said = [];
      for (const svg of document.querySelectorAll("svg[data-chart]")) {
        svg.focus();
        const key = { key: "ArrowRight", bubbles: true, cancelable: true };
        svg.dispatchEvent(new KeyboardEvent("keydown", key));
        const spoken = document.getElementById("said").textContent;
        said.push(document.activeElement === svg ? spoken : "");
        svg.blur();
      }
      document.documentElement.dataset.silent = said.filter((text) => text === "").length;
      document.documentElement.dataset.said = said.length;
      const fixed = [...document.querySelectorAll(".scroll")].filter((e) => e.tabIndex !== 0);
      document.documentElement.dataset.unreachable = fixed.length;
    </script></body>"#;
    let directory = Directory::new("keys");
    write_run(&directory.0);
    let html = read(&directory.0, None).expect("a report").html();
    let Some(dom) = opened("keyboard", &html.replace("</body>", press)) else { return };
    assert!(
        dom.contains("data-silent=\"0\"") && dom.contains("data-said=\"10\""),
        "{}",
        &dom[..300]
    );
    assert!(dom.contains("data-unreachable=\"0\""), "every part that scrolls takes the focus");
}

/// Relative luminance of `#rrggbb`, by the definition of WCAG 2.
fn luminance(colour: &str) -> f64 {
    let channel = |at: usize| {
        let value = u8::from_str_radix(&colour[at..at + 2], 16).expect("a channel");
        let share = f64::from(value) / 255.0;
        if share <= 0.03928 { share / 12.92 } else { math::pow((share + 0.055) / 1.055, 2.4) }
    };
    0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
}

#[test]
fn words_stand_out_from_what_is_behind_them_in_both_themes() {
    for theme in evenfall_runtime::page::PAGE.split(":root {").skip(1) {
        let colour = |name: &str| {
            let value = theme.split(&format!("--{name}: ")).nth(1).expect("a colour");
            luminance(&value[..7])
        };
        for ground in ["page", "card"] {
            for word in ["ink", "soft", "faint", "good", "bad"] {
                let (a, b) = (colour(word), colour(ground));
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                // Success criterion 1.4.3 of WCAG 2.
                assert!(contrast >= 4.5, "--{word} on --{ground}: {contrast:.2}");
            }
        }
    }
}
