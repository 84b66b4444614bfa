//! Every file in `broken/` has a mistake or several; beside it lies what `check` says.

use std::{fs, path::Path};

use chatelaine::packs;

use super::env;

#[test]
fn every_broken_pack_is_told_what_is_wrong_and_what_to_write() {
    let folder = Path::new("tests/it/packs/broken");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(files.len() >= 30);
    let env = env(&[("TOKEN", "t0ken-value"), ("TOKEN_WITH_LINE_BREAK", "t0ken-value\n"), ("EMPTY", "")]);
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("broken");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let report = packs::check(&file, &env, None);
        assert_eq!(report.is_ok(), name == "only-warnings", "{report}");
        let told = report.to_string();
        assert!(!told.contains("t0ken-value") && !told.contains("hunter2"), "{told}");
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
          "hint": "did you mean \"public\"? write one of none, all, public, admin",
          "excerpt": {
            "text": "        default: publik",
            "mark": 18
          }
        }
      ]
    }
    "#);
}
