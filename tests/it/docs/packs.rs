//! The YAML of the pages: whole packs, parts of one, and files of other programs. All of it loads without a problem.

use std::{collections::BTreeMap, fs, path::Path};

use chatelaine::app::tools::policy_trials::judge_example;
use domain::{
    canonical::Hex,
    clock::Clock,
    config::Environment,
    json::Json,
    pin::{self, KnownDefinition, Pins, Standing},
    policy::{CallFacts, Decision, EffectiveAccess, Origin, decide},
    tool::Tool,
};
use serde_json::{Map, Value, json, value::to_raw_value};
use time::OffsetDateTime;

use super::page::{Block, Page, tested};
use crate::support::packs::{env, load_with};

/// What a part of a pack stands in.
const AROUND: &str = r#"metadata: { id: hello, displayName: Hello, defaultLanguage: en }
languages: { en: { greetingMessage: Hello, systemPrompt: "Answer with the tools you have." } }
llm: { provider: none }
"#;

#[test]
fn every_pack_that_is_shown_loads() {
    let mut loaded = 0;
    for page in tested() {
        loaded += load_all(&page);
    }
    assert!(loaded > 10, "only {loaded} blocks of YAML were found");
}

/// Loads each block of a page, a `file:` with those before it; how many there were.
fn load_all(page: &Page) -> usize {
    let packs = tempfile::tempdir().unwrap();
    let blocks: Vec<Block> = page
        .blocks()
        .into_iter()
        .filter(super::page::Block::is_run)
        .collect();
    let mut loaded = 0;
    for block in &blocks {
        if let Some(file) = block.file() {
            write(&packs.path().join(file), &block.text);
            // A capability or a file of variables is nothing by itself; the pack that names it follows.
            if !file.starts_with("capabilities/")
                && Path::new(file).extension() != Some("env".as_ref())
            {
                check(packs.path(), block);
            }
        } else if block.language == "yaml" {
            let pack = completed(&block.text);
            let folder = packs.path().join(id(&pack));
            write(&folder.join("agent-pack.yaml"), &pack);
            check(packs.path(), block);
            fs::remove_dir_all(folder).unwrap();
        } else {
            continue;
        }
        loaded += 1;
    }
    loaded
}

/// The tables of calls on the page of approvals, each against the pack above it.
#[test]
fn what_becomes_of_calls_is_what_the_page_of_approvals_says() {
    let source = fs::read_to_string("docs/approvals.md").unwrap();
    let section = |name: &str| {
        let (_, rest) = source.split_once(&format!("\n## {name}\n")).unwrap();
        rest.split("\n## ").next().unwrap().to_owned()
    };
    assert_eq!(check_calls("deny:", &section("Only some calls")), 8);
    assert_eq!(check_calls("confirm:", &section("Asking the user")), 5);
}

/// Compares the calls in a section with what the pack that has this rule makes of them, and counts them.
fn check_calls(rule: &str, section: &str) -> usize {
    let page = Page::read("docs/approvals.md");
    let blocks = page.blocks();
    let block = blocks.iter().find(|block| block.text.contains(rule));
    let text = completed(&block.expect("the page shows rules").text);
    let pack = load_with(
        &text,
        &env(&[("BANK_MCP_URL", "https://bank.example.org/mcp")]),
    )
    .unwrap();
    let server = &pack.servers[0];
    let mut calls = 0;
    let (_, table) = section.split_once("| A call |").unwrap();
    let rows = table.lines().skip(2);
    for row in rows.take_while(|line| line.starts_with("| `")) {
        let (call, outcome) = row[3..].split_once("` | ").unwrap();
        let (tool, arguments) = call.split_once(' ').unwrap();
        let arguments = Json::parse(arguments).unwrap();
        let facts = CallFacts {
            arguments: &arguments,
            claims: &Map::new(),
            origin: Origin::Chat,
            now: OffsetDateTime::UNIX_EPOCH,
            vars: &pack.vars,
            exceeded: &[],
            only_reads: false,
        };
        let is = match decide(server, &EffectiveAccess::default(), tool, &facts) {
            Decision::Allow(_) => "it is made".to_owned(),
            Decision::Approve(policy) if policy.is_confirmation() => "it asks its user".to_owned(),
            Decision::Approve(policy) => format!("it waits for {}", policy.approvers.join(", ")),
            Decision::Refuse(rule) => format!("it is refused: {}", rule.reason),
            Decision::Deny(why) => panic!("{why:?}"),
        };
        assert_eq!(format!("{is} |"), outcome, "{call}");
        calls += 1;
    }
    calls
}

/// The table of tools on the page of approvals, against the pack above it.
#[test]
fn what_becomes_of_tools_is_what_the_page_of_approvals_says() {
    let page = Page::read("docs/approvals.md");
    let blocks = page.blocks();
    let pack = blocks.iter().find(|block| block.text.contains("pin: hold"));
    let variables = env(&[("BANK_MCP_URL", "https://bank.example.org/mcp")]);
    let pack = load_with(&completed(&pack.unwrap().text), &variables).unwrap();
    let server = &pack.servers[0];
    let source = fs::read_to_string("docs/approvals.md").unwrap();
    let (_, section) = source.split_once("\n## A tool that changes\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let (_, first) = section.split_once("Here it was `").unwrap();
    let first = to_tool(first.split('`').next().unwrap());
    let mut pins = Pins::default();
    assert_eq!(pins.judge(server, &first), Standing::Accept);
    let hash = first.hash.unwrap().0;
    pins.add(
        server.id.clone(),
        first.name,
        hash,
        KnownDefinition::Accepted,
    );
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let mut tools = 0;
    for row in rows {
        let (tool, outcome) = row[3..].split_once("` | ").unwrap();
        let is = match pins.judge(server, &to_tool(tool)) {
            Standing::Known | Standing::Accept | Standing::Record => "it is used |",
            Standing::Wait => "it waits |",
        };
        assert_eq!(is, outcome, "{tool}");
        tools += 1;
    }
    assert_eq!(tools, 4);
}

/// A tool as a server says it, and its hash.
fn to_tool(definition: &str) -> Tool {
    let said: Value = serde_json::from_str(definition).unwrap();
    let text = |member: &str| said[member].as_str().unwrap().to_owned();
    let mut tool = Tool {
        name: text("name"),
        title: None,
        description: text("description"),
        input_schema: to_raw_value(&json!({ "type": "object" })).unwrap(),
        output_schema: None,
        annotations: None,
        icons: None,
        meta: None,
        hash: None,
    };
    tool.hash = Some(Hex(pin::fingerprint(&tool)));
    tool
}

/// The examples on the page of approvals, against the packs that they stand below.
#[test]
fn the_examples_of_the_page_of_approvals_are_as_expected() {
    let page = Page::read("docs/approvals.md");
    let blocks = page.blocks();
    let variables = env(&[("BANK_MCP_URL", "https://bank.example.org/mcp")]);
    let files: Vec<_> = blocks
        .iter()
        .filter(|block| block.text.contains("\nexamples:"))
        .collect();
    let mut judged = 0;
    for (rules, file) in ["limits:", "deny:"].into_iter().zip(files) {
        let block = blocks.iter().find(|block| block.text.contains(rules));
        let pack = load_with(&completed(&block.unwrap().text), &variables).unwrap();
        let examples = packs::read_examples("examples.yaml", &file.text, None).unwrap();
        for example in &examples {
            let (verdict, is_expected) =
                judge_example(&pack, example, Clock::System.now()).unwrap();
            assert!(is_expected, "line {}: {verdict}", example.at.line);
            judged += 1;
        }
    }
    assert_eq!(judged, 11);
}

fn check(packs: &Path, block: &Block) {
    let mut texts = String::new();
    read_all(packs, &mut texts);
    let report = packs::check(packs, &environment(&texts), None);
    assert!(
        report.is_ok() && report.warnings() == 0,
        "{}:\n{report}",
        block.place
    );
}

/// Every variable that the files name.
fn environment(texts: &str) -> Environment {
    let references = texts
        .split("${")
        .skip(1)
        .chain(texts.split("{env:").skip(1));
    let names = references.filter_map(|rest| rest.split('}').next());
    let bearer = texts.split("auth_ref:").skip(1);
    let names = names.chain(bearer.filter_map(|rest| rest.split_whitespace().next()));
    names.fold(Environment::default(), |env, name| {
        let value = match name {
            name if name.ends_with("URL") => "https://tools.example.org/mcp",
            "LLM_PROVIDER" => "none",
            _ => "value",
        };
        env.with(name, value)
    })
}

fn read_all(folder: &Path, texts: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, texts);
        } else {
            texts.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A part of a pack takes the place of what [`AROUND`] says for the same keys.
fn completed(part: &str) -> String {
    let mut sections = sections(AROUND);
    sections.extend(self::sections(part));
    sections.into_values().collect()
}

/// The id in `metadata: { id: hello, … }`.
fn id(pack: &str) -> &str {
    let rest = pack.split("metadata: { id: ").nth(1);
    let rest = rest.expect("a pack has an id");
    rest.split(|c: char| !c.is_ascii_alphanumeric())
        .next()
        .unwrap()
}

/// The text of each key at the top, with the comments before it.
fn sections(yaml: &str) -> BTreeMap<String, String> {
    let (mut sections, mut comments) = (BTreeMap::<String, String>::new(), String::new());
    let mut current = String::new();
    for line in yaml.lines() {
        if line.starts_with('#') {
            comments = comments + line + "\n";
            continue;
        }
        if line.starts_with(|c: char| c.is_ascii_alphabetic()) {
            line.split(':').next().unwrap().clone_into(&mut current);
        }
        let section = sections.entry(current.clone()).or_default();
        section.push_str(&std::mem::take(&mut comments));
        section.push_str(line);
        section.push('\n');
    }
    sections
}
