//! The answers of `evenfall stat` as tables with units.

use evenfall_runtime::listing::printable;
use serde_json::Value;

use crate::watch::picture::{
    NodeNews, NodePicture, RunPicture, picture_node, picture_run, spoken_or_dash, spoken_us,
};
use crate::watch::told::read_root;

/// What a root says: the verdict, and a line for every node of the run. `None` when the answer is
/// not that of a root which leads.
pub fn root_lines(status: &Value) -> Option<Vec<String>> {
    let tree = read_root(&status.to_string()).filter(|tree| tree.leads)?;
    let nodes = tree.members.iter();
    let nodes = nodes.map(|node| picture_node(node, &tree, NodeNews::default())).collect();
    let picture = picture_run(&tree, None, nodes);
    let mut lines = vec![picture.recent.clone(), picture.total.clone(), rates(&picture)];
    lines.push(format!(
        "{:<20} {:<9} {:<10} {:>10} {:>10} {:>9} {:>7} {:>7} {:>9} {:>8} {:>9}",
        "node",
        "role",
        "state",
        "delay p50",
        "p99",
        "released",
        "late",
        "lost",
        "repaired",
        "hedges",
        "clock"
    ));
    lines.extend(picture.nodes.iter().map(node_line));
    Some(lines.iter().map(|line| printable(line)).collect())
}

fn rates(picture: &RunPicture) -> String {
    let mode = match picture.hold {
        Some(_) => format!("mode {}, {}", picture.mode, picture.spoken_hold()),
        None => picture.spoken_hold(),
    };
    let oml = &picture.span.oml_us;
    format!(
        "{mode}; latency (OML) {}, p99 {}; {} released, {} late, {} lost, {} repaired, over all \
         receivers",
        spoken_or_dash(oml.p50),
        spoken_or_dash(oml.p99),
        picture.released,
        picture.late,
        picture.lost,
        picture.repaired
    )
}

fn node_line(node: &NodePicture) -> String {
    let wins = node.spoken_hedge_wins();
    let clock = match (node.clock.as_str(), node.clock_bound) {
        ("same", _) => "one clock".to_owned(),
        (_, Some(bound)) => spoken_us(bound),
        ("", _) => "-".to_owned(),
        (word, _) => word.to_owned(),
    };
    format!(
        "{:<20} {:<9} {:<10} {:>10} {:>10} {:>9} {:>7} {:>7} {:>9} {wins:>8} {clock:>9}",
        node.name,
        node.role,
        node.state,
        spoken_or_dash(node.p50),
        spoken_or_dash(node.p99),
        node.released,
        node.late,
        node.lost,
        node.repaired
    )
}

/// One line per tree of any other node: every number outside of lists, by its name and with its
/// unit. Numbers that are zero are left out.
pub fn other_lines(name: &str, status: &Value) -> Vec<String> {
    let trees = status.as_array().cloned().unwrap_or_else(|| vec![status.clone()]);
    let one_tree = trees.len() == 1;
    let line = |(tree, status): (usize, &Value)| {
        let mut line = format!("{name:<20}");
        if !one_tree {
            line.push_str(&format!(" tree {tree}"));
        }
        flatten_numbers("", status, &mut line);
        line
    };
    trees.iter().enumerate().map(line).collect()
}

fn flatten_numbers(prefix: &str, value: &Value, line: &mut String) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let skip = matches!(key.as_str(), "tally" | "below" | "refusals");
                let name =
                    if skip || prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten_numbers(if skip { "" } else { &name }, value, line);
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(0.0);
            if number == 0.0 {
                return;
            }
            let shown = match (prefix.strip_suffix("_ns"), prefix.strip_suffix("bytes")) {
                (Some(name), _) => format!("{name} {}", spoken_us(number / 1e3)),
                (_, Some(name)) => format!("{name}size {:.1} MB", number / 1e6),
                _ => format!("{prefix} {number}"),
            };
            line.push_str("  ");
            line.push_str(&shown.replace('_', " "));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_root_is_a_verdict_and_a_table_of_all_nodes() {
        let status = json!([{
            "phase": "feeding", "leads": true, "mode": "release", "name": "root",
            "hold_ns": 233_000, "hold_max_ns": 50_000_000, "target": 0.994,
            "last_10s": { "judged": 9, "late": 0, "on_time_share": 1.0 },
            "members": [{ "id": 7, "name": "desk\u{1b}[2J", "role": "receiver", "state": "sound",
                "delay_p50_us": 118.0, "delay_p99_us": 190.0, "released": 100, "hedge_wins": 12,
                "clock": "within", "clock_bound_us": 3.0, "age_ms": 20 }],
        }]);
        let lines = root_lines(&status).expect("a root");
        assert!(lines[0].starts_with("Fair: in the last 10 s 100 % of messages"), "{}", lines[0]);
        assert!(lines[2].starts_with("mode release, hold 233 us of 50 ms"), "{}", lines[2]);
        let row = lines.last().expect("a node");
        for words in ["receiver", "sound", "118 us", "190 us", "100", "12 %", "3 us"] {
            assert!(row.contains(words), "{words} in {row}");
        }
        assert!(!row.contains('\u{1b}'), "a name moves no cursor");
        assert!(root_lines(&json!([{ "released": 7 }])).is_none());
    }

    #[test]
    fn other_nodes_have_a_line_with_units() {
        let status = json!({ "forwarded": 12, "below": { "late": 3 }, "wait_ns": 64_000, "x": 0 });
        let lines = other_lines("proxy-1", &status);
        assert_eq!(lines, ["proxy-1               late 3  forwarded 12  wait 64 us"]);
    }
}
