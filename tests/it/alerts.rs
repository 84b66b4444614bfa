//! The alert rules and the dashboard name what the program measures. `make test-alerts` makes the alerts fire.

use std::collections::{BTreeMap, BTreeSet};

use domain::config::SETTINGS;
use serde_json::Value;

use crate::support::world::World;

const RULES: &str = include_str!("../../deploy/prometheus/alerts.yml");
const TESTS: &str = include_str!("../../deploy/prometheus/alerts.test.yml");
const DASHBOARD: &str = include_str!("../../deploy/grafana/chatelaine.json");
const PAGE: &str = include_str!("../../docs/alerts.md");
/// Labels that Prometheus itself adds.
const OF_PROMETHEUS: [&str; 2] = ["job", "instance"];

/// The labels of each series that `/metrics` has, with their values.
type Measured = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

async fn measured() -> Measured {
    let world = World::shared().await;
    world.nobody().get("/v1/agents").await;
    let text = world.nobody().get("/metrics").await.text;
    let mut measured = Measured::from([("up".to_owned(), BTreeMap::new())]);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, _)) = line.rsplit_once(' ') else {
            continue;
        };
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let known = measured.entry(name.to_owned()).or_default();
        for (label, value) in pairs(labels.trim_end_matches('}')) {
            known.entry(label).or_default().insert(value);
        }
    }
    measured
}

/// `a="x",b="y"`, also with other operators than `=`, which stay at the end of the name.
fn pairs(labels: &str) -> Vec<(String, String)> {
    let parts: Vec<&str> = labels.split('"').collect();
    let pairs = parts.chunks_exact(2);
    pairs
        .map(|pair| {
            let name = pair[0].trim_matches([',', ' ']);
            let name = name.strip_suffix('=').unwrap_or(name);
            (name.to_owned(), pair[1].to_owned())
        })
        .collect()
}

/// The queries of the rules, each with the name of its alert.
fn rules() -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut is_in_query = false;
    for line in RULES.lines() {
        if let Some((_, alert)) = line.split_once("- alert: ") {
            found.push((alert.to_owned(), String::new()));
        } else if let Some((_, query)) = line.split_once(" expr: ") {
            let (_, known) = found.last_mut().unwrap();
            known.push_str(query.trim_start_matches('|'));
            is_in_query = query == "|";
        } else if line.trim_start().starts_with("labels:") || line.trim_start().starts_with("for:")
        {
            is_in_query = false;
        } else if is_in_query {
            let (_, known) = found.last_mut().unwrap();
            known.push_str(line);
        }
    }
    found
}

/// Every query of the dashboard, those of its variables included, with the title of its panel.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let title = panel["title"].as_str().unwrap().to_owned();
            found.push((title, target["expr"].as_str().unwrap().to_owned()));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            found.push((
                variable["name"].as_str().unwrap().to_owned(),
                query.to_owned(),
            ));
        }
    }
    found
}

fn is_in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The metrics that a text names, each with what follows it.
fn metrics(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_in_word) {
        rest = &rest[start..];
        let end = rest.find(|c| !is_in_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.starts_with("chatelaine_") || word.starts_with("process_") || word == "up" {
            found.push((word, after));
        }
        rest = after;
    }
    found
}

/// What is wrong with a query.
fn faults(query: &str, measured: &Measured) -> Vec<String> {
    let mut faults = Vec::new();
    let mut labels: BTreeSet<&str> = OF_PROMETHEUS.into();
    for (name, after) in metrics(query) {
        let Some(known) = measured.get(name) else {
            faults.push(format!("{name} is not measured"));
            continue;
        };
        labels.extend(known.keys().map(String::as_str));
        let Some(selector) = after.strip_prefix('{') else {
            continue;
        };
        let (selector, _) = selector.split_once('}').unwrap();
        for (label, value) in pairs(selector) {
            let name_of_label = label.trim_end_matches(['!', '~', '=']);
            let Some(values) = known.get(name_of_label) else {
                if !OF_PROMETHEUS.contains(&name_of_label) {
                    faults.push(format!("{name} has no label {name_of_label}"));
                }
                continue;
            };
            // Routes and statuses come with requests; patterns of words name each word.
            let is_fixed = !["route", "status", "method"].contains(&name_of_label)
                || name == "chatelaine_runs_total";
            for word in value.split('|').filter(|_| is_fixed) {
                if !values.contains(word) {
                    faults.push(format!("{name} has no {name_of_label}={word:?}"));
                }
            }
        }
    }
    for part in query.split(" by (").skip(1) {
        let (list, _) = part.split_once(')').unwrap();
        for label in list.split(',').map(str::trim) {
            if !labels.contains(label) {
                faults.push(format!("nothing in it has the label {label}"));
            }
        }
    }
    faults
}

#[tokio::test]
async fn rules_and_dashboard_name_what_is_measured() {
    let measured = measured().await;
    let queries: Vec<_> = rules().into_iter().chain(panels()).collect();
    assert!(queries.len() > 60, "{}", queries.len());
    let mut wrong = Vec::new();
    for (place, query) in &queries {
        assert!(!metrics(query).is_empty(), "{place}: {query:?}");
        wrong.extend(
            faults(query, &measured)
                .into_iter()
                .map(|why| format!("{place}: {why}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Also in the sentences.
    for (name, _) in metrics(RULES).into_iter().chain(metrics(PAGE)) {
        let is_part = measured
            .keys()
            .any(|known| known == name || known.strip_suffix("_count") == Some(name));
        assert!(is_part || name == "process_", "{name}");
    }
}

#[tokio::test]
async fn a_query_that_drifted_is_noticed() {
    let measured = measured().await;
    for query in [
        "chatelaine_runs_finished_total > 0",
        r#"rate(chatelaine_runs_total{outcome="failed"}[5m])"#,
        r#"rate(chatelaine_runs_total{status="broken"}[5m])"#,
        "sum by (tenant) (chatelaine_runs_waiting)",
    ] {
        assert_eq!(faults(query, &measured).len(), 1, "{query}");
    }
}

#[test]
fn every_alert_is_tested_and_explained() {
    let rules = rules();
    let count = |text: &str| RULES.matches(text).count();
    for part in [
        "labels: { severity: ",
        "  summary: \"",
        "  description: \"",
        "  runbook: docs/alerts.md#",
    ] {
        assert_eq!(count(part), rules.len(), "{part}");
    }
    for (alert, _) in &rules {
        assert!(
            TESTS.contains(&format!("- name: {alert}\n")),
            "{alert} in alerts.test.yml"
        );
        assert!(
            PAGE.contains(&format!("| `{alert}` |")),
            "{alert} in docs/alerts.md"
        );
    }
    let explained = PAGE
        .lines()
        .filter(|line| line.starts_with("| `Chatelaine"))
        .count();
    assert_eq!(
        explained,
        rules.len(),
        "docs/alerts.md explains an alert that there is not"
    );
    for link in RULES
        .lines()
        .filter_map(|line| line.split_once("docs/alerts.md#"))
    {
        let heading = link.1.trim().to_lowercase();
        let exists = PAGE.lines().any(|line| {
            line.strip_prefix("## ")
                .is_some_and(|title| title.to_lowercase() == heading)
        });
        assert!(exists, "{heading}");
    }
    for word in RULES
        .split(|c| !is_in_word(c))
        .filter(|word| word.starts_with("CHATELAINE_"))
    {
        assert!(SETTINGS.iter().any(|(name, ..)| *name == word), "{word}");
    }
}

#[test]
fn the_dashboard_is_for_any_grafana() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    assert!(dashboard.get("uid").is_none(), "Grafana gives it one");
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let place = &panel["gridPos"];
        let right = place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap();
        assert!(right <= 24, "{panel}");
        if panel["type"] != "row" {
            assert_eq!(
                panel["datasource"]["uid"], "${datasource}",
                "{}",
                panel["title"]
            );
            for target in panel["targets"].as_array().unwrap() {
                let query = target["expr"].as_str().unwrap();
                assert_eq!(target["datasource"]["uid"], "${datasource}");
                assert!(query.contains("$instance"), "{query}");
            }
        }
    }
    let rows: Vec<_> = dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|panel| panel["type"] == "row")
        .collect();
    let titles: Vec<_> = rows
        .iter()
        .map(|row| row["title"].as_str().unwrap())
        .collect();
    assert_eq!(
        titles,
        [
            "Requests", "Runs", "Models", "Tools", "People", "Database", "Process"
        ]
    );
}
