//! The README and the pages of `docs/`, compared with the code, and run. What a page shows works.

mod chat; // chats that pages show
mod packs; // the packs that pages show
mod page; // pages, blocks and links
mod session; // blocks at work against the demo

use std::{collections::BTreeSet, fs, path::Path};

use chatelaine::cli::Cli;
use clap::{CommandFactory as _, Parser as _, error::ErrorKind};
use domain::config::{Config, Environment, SETTINGS};
use serde_json::Value;

use self::{
    page::{Page, may_be_missing, pages, tested},
    session::Session,
};

/// Variables that are no settings of the service.
const OTHER_VARIABLES: [&str; 10] = [
    "CHATELAINE_MODEL_REQUESTS",
    "CHATELAINE_CHAT_HISTORY",
    "CHATELAINE_SOAK_NEXT_PROGRAM",
    "CHATELAINE_TOKEN",
    "CHATELAINE_URL",
    "CHATELAINE_TEST_DATABASE_URL",
    "CHATELAINE_TEST_LOG",
    "CHATELAINE_TEST_POOLER",
    "CHATELAINE_TORTURE",
    "CHATELAINE_TORTURE_OAUTH",
];
/// Lines of the README.
const README_LINES: usize = 150;
/// The widest line of a sentence, and the most lines of a paragraph.
const WIDTH: usize = 116;
const PARAGRAPH: usize = 6;

/// Each page in a demo of its own, with the variables that the index sets.
async fn run(path: &str) {
    let index = Page::read("docs/README.md").blocks();
    let variables = index.iter().find(|block| block.comment == "variables");
    let variables = variables.expect("the index sets the variables of the examples");
    let mut session = Session::start().await;
    session.shell(&variables.place, &variables.text).await;
    session.run(&Page::read(path)).await;
    session.stop().await;
}

macro_rules! run_pages {
    ($($test:ident $path:literal;)*) => {
        const RUN: &[&str] = &[$($path),*];
        $(#[tokio::test]
        async fn $test() {
            run($path).await;
        })*
    };
}

run_pages! {
    the_readme_works "README.md";
    the_index_works "docs/README.md";
    the_page_for_users_works "docs/users.md";
    the_page_for_operators_works "docs/operators.md";
    the_page_for_frontends_works "docs/frontends.md";
    the_page_on_protocols_works "docs/frontends/protocols.md";
    the_page_on_administration_works "docs/administration.md";
    the_page_on_approvals_works "docs/approvals.md";
    the_page_on_credentials_works "docs/credentials.md";
    the_page_on_keys_works "docs/keys.md";
    the_page_on_runs_works "docs/runs.md";
    the_page_on_servers_works "docs/servers.md";
    the_page_on_skills_works "docs/skills.md";
}

#[test]
fn exactly_the_pages_with_something_to_run_are_run() {
    for page in tested() {
        let runs = page.blocks().iter().any(|block| {
            block.is_run() && ["sh", "chat", "python", "js"].contains(&block.language.as_str())
        });
        let listed = RUN.contains(&page.path.as_str());
        assert_eq!(listed, runs, "{} in `run_pages`", page.path);
    }
}

#[test]
fn every_block_is_of_a_kind_that_is_tested() {
    for block in tested().iter().flat_map(Page::blocks) {
        let known = match block.language.as_str() {
            // The last two are figures, and what a program prints.
            "sh" | "chat" | "json" | "yaml" | "python" | "js" | "mermaid" | "text" => true,
            _ => !block.is_run(),
        };
        assert!(known, "{}: language {:?}", block.place, block.language);
        if block.language == "json" && block.is_run() {
            let parsed = serde_json::from_str::<Value>(&block.text);
            assert!(parsed.is_ok(), "{}: {parsed:?}", block.place);
        }
    }
}

#[test]
fn the_settings_table_is_the_codes() {
    let page = Page::read("docs/settings.md");
    let rows: Vec<_> = page
        .text
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
        "docs/settings.md should say:\n{}",
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
fn every_variable_that_is_named_is_a_setting() {
    let known: BTreeSet<_> = SETTINGS.iter().map(|(name, ..)| *name).collect();
    for page in pages() {
        let names = page
            .text
            .split(|c: char| !c.is_ascii_uppercase() && c != '_')
            .filter(|word| word.starts_with("CHATELAINE_") && word.len() > "CHATELAINE_".len());
        for name in names {
            let exists = known.contains(name) || OTHER_VARIABLES.contains(&name);
            assert!(exists, "{} names {name}", page.path);
        }
    }
}

#[test]
fn every_page_is_named_and_every_link_leads_somewhere() {
    let pages = pages();
    let mut linked = BTreeSet::new();
    for page in &pages {
        for (line, link) in page.links() {
            if link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let folder = Path::new(&page.path).parent().unwrap();
            let path = match file {
                "" => page.path.clone(),
                file => normal(&folder.join(file)),
            };
            let place = format!("{}:{line}", page.path);
            let exists = Path::new(&path).exists() || may_be_missing(&path);
            assert!(exists, "{place}: there is no {path}");
            if page.path == "docs/README.md" {
                linked.insert(path.clone());
            }
            if !anchor.is_empty() {
                let to = pages.iter().find(|page| page.path == path).unwrap();
                let found = to.anchors().iter().any(|known| known == anchor);
                assert!(found, "{place}: {path} has no heading for #{anchor}");
            }
        }
    }
    let all: BTreeSet<_> = pages.into_iter().map(|page| page.path).collect();
    let missing: Vec<_> = all.difference(&linked).collect();
    assert!(
        missing.is_empty() || missing == ["docs/README.md"],
        "the index does not name {missing:?}"
    );
}

/// `docs/../README.md` → `README.md`
fn normal(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.to_str().unwrap().split('/') {
        match part {
            ".." => drop(parts.pop()),
            "" | "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn every_make_target_that_is_named_exists() {
    let makefile = include_str!("../../Makefile");
    for page in pages() {
        let spans = page.code_spans().into_iter().map(|(_, span)| span);
        let blocks = page.blocks().into_iter();
        let lines = blocks.flat_map(|block| {
            let lines = block.text.lines().map(ToOwned::to_owned);
            lines.collect::<Vec<_>>()
        });
        for line in spans.chain(lines) {
            let mut words = line
                .split_whitespace()
                .skip_while(|word| word.contains('='));
            let (Some("make"), Some(target)) = (words.next(), words.next()) else {
                continue;
            };
            let exists = makefile
                .lines()
                .any(|line| line.starts_with(&format!("{target}:")));
            assert!(exists, "{} says `make {target}`", page.path);
        }
    }
}

/// In sentences and in blocks that are not run; the others are run.
#[test]
fn every_command_line_that_is_shown_exists() {
    Cli::command().debug_assert();
    for page in pages() {
        let spans = page.code_spans().into_iter().map(|(_, span)| span);
        let shown = page.blocks().into_iter().filter(|block| !block.is_run());
        let lines = shown.flat_map(|block| {
            let text = block.text.replace("\\\n", " ");
            text.lines().map(ToOwned::to_owned).collect::<Vec<_>>()
        });
        for line in spans.chain(lines) {
            if let Some(words) = command_line(&line) {
                let refused = Cli::try_parse_from(&words).err();
                let wrong = refused.filter(|error| {
                    matches!(
                        error.kind(),
                        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand
                    )
                });
                assert!(wrong.is_none(), "{}: {line}\n{wrong:?}", page.path);
            }
        }
    }
}

/// `A=b chatelaine tenant add acme | head  # …` → its words, from the program on.
fn command_line(line: &str) -> Option<Vec<String>> {
    let line = line.split(" #").next()?.trim_start_matches("$ ");
    let from = line
        .split_whitespace()
        .position(|word| word == "chatelaine" || word.ends_with("/chatelaine"))?;
    let before = line.split_whitespace().take(from);
    let only_variables = before.clone().all(|word| word.contains('='));
    let words = line.split_whitespace().skip(from);
    let words = words.take_while(|word| !["|", ">", "&&", "<"].contains(word));
    let words: Vec<String> = words.map(ToOwned::to_owned).collect();
    (only_variables && words.len() > 1 && !words[1].starts_with("::")).then_some(words)
}

/// `GET /v1/me` in a sentence is a route.
#[test]
fn every_route_that_is_named_exists() {
    let document: Value = chatelaine::api::openapi();
    for page in pages() {
        for (line, span) in page.code_spans() {
            let Some((method, path)) = span.split_once(' ') else {
                continue;
            };
            let methods = ["GET", "POST", "PUT", "PATCH", "DELETE"];
            if !methods.contains(&method) || !path.starts_with('/') {
                continue;
            }
            let path = path.split('?').next().unwrap();
            let exists = document["paths"].as_object().unwrap().iter().any(|route| {
                fits(route.0, path) && route.1.get(method.to_ascii_lowercase()).is_some()
            });
            assert!(exists, "{}:{line}: there is no {method} {path}", page.path);
        }
    }
}

/// Whether a path is one of a route with `{parameters}`.
fn fits(route: &str, path: &str) -> bool {
    let (route, path): (Vec<_>, Vec<_>) = (route.split('/').collect(), path.split('/').collect());
    let mut parts = route.iter().zip(&path);
    route.len() == path.len() && parts.all(|(route, path)| route == path || route.starts_with('{'))
}

/// The map and the page for contributors name files, folders and modules as they are.
#[test]
fn every_module_that_is_named_exists() {
    for path in ["docs/architecture.md", "docs/contributors.md"] {
        let page = Page::read(path);
        for (line, span) in page.code_spans() {
            let file = [
                "crates/",
                "src/",
                "tests/",
                "migrations/",
                "packs/",
                "benches/",
                "examples/",
            ];
            if file.iter().any(|folder| span.starts_with(folder)) {
                let found = Path::new(span.trim_end_matches('/')).exists();
                assert!(found, "{path}:{line}: there is no {span}");
            } else if let Some(module) = module(&span) {
                let found = ["", ".rs"]
                    .iter()
                    .any(|end| Path::new(&format!("{module}{end}")).exists());
                assert!(found, "{path}:{line}: there is no module {span}");
            }
        }
    }
}

/// `app::tools::gate` → `src/app/tools/gate`, `store::vault` → `crates/store/src/vault`
fn module(span: &str) -> Option<String> {
    let word =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let (top, below) = span.split_once("::")?;
    if !span.split("::").all(word) {
        return None;
    }
    let folder = if Path::new("crates").join(top).exists() {
        format!("crates/{top}/src")
    } else if Path::new("src").join(top).with_extension("rs").exists() {
        format!("src/{top}")
    } else {
        return None;
    };
    Some(format!("{folder}/{}", below.replace("::", "/")))
}

#[test]
fn every_metric_that_the_code_counts_is_on_the_page() {
    let named = |text: &str| {
        let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        let ours = words.filter(|word| word.starts_with("chatelaine_"));
        ours.map(ToOwned::to_owned).collect::<BTreeSet<String>>()
    };
    let mut quoted = BTreeSet::new();
    let mut read = |text: &str| {
        for macro_name in ["counter!(", "gauge!(", "histogram!("] {
            let calls = text.split(macro_name).skip(1);
            let names = calls.filter_map(|call| call.split('"').nth(1));
            let ours = names.filter(|name| name.starts_with("chatelaine_"));
            quoted.extend(ours.map(ToOwned::to_owned));
        }
    };
    sources(Path::new("src"), &mut read);
    sources(Path::new("crates"), &mut read);
    let page = Page::read("docs/operators.md");
    let table = page
        .text
        .lines()
        .filter(|l| l.starts_with("| `chatelaine_"));
    let table: BTreeSet<_> = table.flat_map(named).collect();
    // That the page names no other is seen where they are served.
    assert_eq!(
        quoted.difference(&table).collect::<Vec<_>>(),
        [""; 0],
        "these are not on the page"
    );
    assert!(quoted.len() > 10);
}

fn sources(folder: &Path, read: &mut impl FnMut(&str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, read);
        } else if path.extension().is_some_and(|end| end == "rs") {
            read(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn pages_are_easy_to_read() {
    let readme = Page::read("README.md").text.lines().count();
    assert!(readme <= README_LINES, "README.md has {readme} lines");
    for page in tested() {
        let mut paragraph = 0;
        for (number, line) in page.prose() {
            let place = format!("{}:{number}", page.path);
            let table = line.starts_with('|');
            let words = !table && !line.contains("](https://");
            assert!(!words || line.chars().count() <= WIDTH, "{place}: too wide");
            let item = line.trim_start().split(' ').next().unwrap();
            let item = item == "-" || item.trim_end_matches('.').parse::<u8>().is_ok();
            let ends = line.trim().is_empty() || table || item;
            paragraph = if ends { 0 } else { paragraph + 1 };
            assert!(paragraph <= PARAGRAPH, "{place}: the paragraph is too long");
        }
    }
}
