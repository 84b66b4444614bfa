//! What the README promises, compared with the code.

use std::collections::BTreeSet;

use chatelaine::domain::config::{Config, Environment, SETTINGS};

const README: &str = include_str!("../../README.md");

#[test]
fn the_settings_table_is_the_codes() {
    let rows: Vec<_> = README
        .lines()
        .filter(|line| line.starts_with("| `") && line.matches('|').count() == 4)
        .collect();
    let expected: Vec<String> = SETTINGS
        .iter()
        .map(|(name, default, what)| {
            let default = if default.is_empty() {
                String::new()
            } else {
                format!("`{default}`")
            };
            format!("| `{name}` | {default} | {what} |").replace("|  |", "| |")
        })
        .collect();
    assert_eq!(
        rows,
        expected,
        "the README should say:\n{}",
        expected.join("\n")
    );
}

#[test]
fn every_default_is_a_valid_setting() {
    assert!(Config::from_environment(&Environment::default()).is_ok());
}

#[test]
fn a_wrong_setting_is_refused_by_its_name() {
    for name in [
        "CHATELAINE_LISTEN",
        "CHATELAINE_MAX_REQUESTS",
        "CHATELAINE_LOG_FORMAT",
    ] {
        let env = Environment::default().with(name, "nonsense");
        let refused = Config::from_environment(&env).err().unwrap();
        assert!(refused.starts_with(name), "{refused}");
    }
}

#[test]
fn the_pack_in_twenty_lines_loads() {
    let yaml = README
        .split("```yaml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("hello")).unwrap();
    std::fs::write(folder.path().join("hello/agent-pack.yaml"), yaml).unwrap();
    let env = Environment::default()
        .with("OPENAI_API_KEY", "sk")
        .with("BANK_TOKEN", "token");
    let report = chatelaine::packs::check(folder.path(), &env, None);
    assert!(report.is_ok() && report.warnings() == 0, "{report}");
}

#[test]
fn every_page_is_named_and_every_link_leads_somewhere() {
    let linked: BTreeSet<_> = README
        .split("](docs/")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .map(ToOwned::to_owned)
        .collect();
    let pages = std::fs::read_dir("docs")
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap());
    assert_eq!(linked, pages.collect::<BTreeSet<_>>());
}

#[test]
fn every_make_target_that_is_named_exists() {
    let makefile = include_str!("../../Makefile");
    let pages = std::fs::read_dir("docs")
        .unwrap()
        .map(|page| std::fs::read_to_string(page.unwrap().path()).unwrap());
    let all: String = pages.chain([README.to_owned()]).collect();
    let named = all
        .split("make ")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_lowercase()).next());
    for target in named.filter(|target| !target.is_empty()) {
        let exists = makefile
            .lines()
            .any(|line| line.starts_with(&format!("{target}:")));
        assert!(exists, "the README says `make {target}`");
    }
}
