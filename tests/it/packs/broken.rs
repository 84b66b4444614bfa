//! Every file in `broken/` has a mistake or several; beside it lies what `check` says.

use std::{fs, path::Path};

use proptest::prelude::*;

use crate::support::packs::{env, write_pack};

#[test]
fn every_broken_pack_is_told_what_is_wrong_and_what_to_write() {
    let folder = Path::new("tests/it/packs/broken");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "yaml")
    });
    files.sort();
    assert!(files.len() >= 30);
    let env = env(&[
        ("TOKEN", "t0ken-value"),
        ("TOKEN_WITH_LINE_BREAK", "t0ken-value\n"),
        ("EMPTY", ""),
    ]);
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("broken");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let report = packs::check(&file, &env, None);
        assert_eq!(report.is_ok(), name == "only-warnings", "{report}");
        let told = report.to_string();
        assert!(
            !told.contains("t0ken-value") && !told.contains("hunter2"),
            "{told}"
        );
        settings.bind(|| insta::assert_snapshot!(name, told));
    }
}

#[test]
fn a_report_can_be_read_by_programs() {
    let file = Path::new("tests/it/packs/broken/unknown-default-access.yaml");
    let report = serde_json::to_value(packs::check(file, &env(&[]), None)).unwrap();
    insta::assert_json_snapshot!(report, @r#"
    {
      "packs": 1,
      "problems": [
        {
          "severity": "error",
          "file": "tests/it/packs/broken/unknown-default-access.yaml",
          "at": {
            "line": 10,
            "column": 18
          },
          "path": "mcp.servers[0].toolAccess.default",
          "message": "unknown value \"publik\"",
          "hint": "did you mean \"public\"? write one of none, all, public, users, admin",
          "excerpt": {
            "text": "        default: publik",
            "mark": 18
          }
        }
      ]
    }
    "#);
}

#[test]
fn of_a_very_long_line_only_what_is_around_the_mistake_is_shown() {
    let root = tempfile::tempdir().unwrap();
    let (before, after) = ("ä".repeat(5_000), "b".repeat(200_000));
    let text = format!(
        "metadata: {{ id: demo, description: {before}, defaultLanguage: 5, displayName: {after} }}\n"
    );
    write_pack(root.path(), "demo", &text);
    let report = packs::check(root.path(), &env(&[]), None);
    let problem = report
        .problems
        .iter()
        .find(|problem| problem.path == "metadata.defaultLanguage")
        .unwrap();
    let excerpt = problem.excerpt.as_ref().unwrap();
    assert!(excerpt.text.chars().count() < 200, "{report}");
    assert_eq!(
        excerpt.text.chars().nth(excerpt.mark - 1),
        Some('5'),
        "{report}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Slips of the keyboard in a real pack: whatever they do to it, there is a report.
    #[test]
    fn no_slip_makes_the_reader_panic(
        slips in prop::collection::vec((any::<prop::sample::Index>(), 0..4usize, "[a-z\\-:{}\\[\\]\"'$&*#|>!%@,\t\n é🗝]{0,3}"), 1..6)
    ) {
        let root = tempfile::tempdir().unwrap();
        let mut text: Vec<char> = fs::read_to_string("packs/bank/agent-pack.yaml").unwrap().chars().collect();
        for (at, removed, inserted) in slips {
            let at = at.index(text.len());
            let end = (at + removed).min(text.len());
            text.splice(at..end, inserted.chars());
        }
        let file = root.path().join("agent-pack.yaml");
        fs::write(&file, text.into_iter().collect::<String>()).unwrap();
        let variables = env(&[("LLM_PROVIDER", "none"), ("BANK_MCP_URL", "https://bank.example.org")]);
        let report = packs::check(&file, &variables, None);
        prop_assert!(report.to_string().contains("1 pack: "));
    }
}
