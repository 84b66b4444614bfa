//! The AOS document: servers and a skill.

use domain::{
    config::Environment,
    pack::Pack,
    server::{Endpoint, Remote},
};

use super::snippet;
use crate::support::packs::{checked, child, env, errors, headers, load_files, open, tools};

fn variables() -> Environment {
    env(&[("MY_TOKEN", "mine"), ("SEARCH_TOKEN", "s3arch")])
}

/// The snippet shows two files, each with a comment on top.
fn servers() -> [String; 2] {
    let text = snippet("aos", 1);
    let (first, second) = text.split_once("# http server").unwrap();
    [first.to_owned(), format!("# http server{second}")]
}

fn pack() -> Pack {
    let ([files, search], skill) = (servers(), snippet("aos", 2));
    let files = [
        ("core/mcp/files.yaml", files.as_str()),
        ("core/mcp/search.yaml", &search),
        ("core/skills/web-search/skill.yaml", &skill),
    ];
    load_files(&files, &variables())
}

#[test]
fn a_child_gets_its_arguments_and_a_templated_environment() {
    let pack = pack();
    let files = pack.server("files").unwrap();
    assert_eq!(
        child(files),
        (
            "my-mcp-server",
            vec!["--root", "."],
            vec![("API_TOKEN", "mine")]
        )
    );
    assert!(open(files, "anything"));
}

#[test]
fn auth_ref_resolves_to_a_bearer_header_and_the_allowlist_narrows() {
    let pack = pack();
    let search = pack.server("search").unwrap();
    assert_eq!(headers(search), [("Authorization", "Bearer s3arch")]);
    let Endpoint::Remote { transport, url, .. } = &search.endpoint else {
        panic!("not remote")
    };
    assert_eq!(
        (*transport, url.as_str()),
        (Remote::StreamableHttp, "https://mcp.example.com/")
    );
    assert_eq!(tools(search), Some(vec!["web_search"]));
    assert!(open(search, "web_search") && !open(search, "web_fetch"));
}

#[test]
fn a_skill_is_bound_to_a_tool() {
    let pack = pack();
    let [skill] = &pack.skills[..] else {
        panic!("one skill")
    };
    assert_eq!(
        (skill.id.as_str(), skill.name(&pack, None)),
        ("web-search", "web-search")
    );
    assert_eq!(
        (skill.server.as_str(), &skill.tools[..]),
        ("search", &["web_search".to_owned()][..])
    );
}

#[test]
fn every_variable_must_be_set() {
    let [files, search] = servers();
    let files = [
        ("core/mcp/files.yaml", files.as_str()),
        ("core/mcp/search.yaml", &search),
    ];
    assert_eq!(
        errors(&files, &env(&[])),
        [
            "env.API_TOKEN: Config error in core/mcp/files.yaml: environment variable \"MY_TOKEN\" is not set",
            "auth_ref: Config error in core/mcp/search.yaml: environment variable \"SEARCH_TOKEN\" of \"auth_ref\" is not set",
        ]
    );
}

/// As it stands in the document, in one block.
#[test]
fn two_servers_in_one_file_are_named_with_the_two_files_to_write() {
    let said = errors(&[("core/mcp/all.yaml", &snippet("aos", 1))], &variables());
    let message = "this file holds two servers; write core/mcp/files.yaml and core/mcp/search.yaml";
    assert!(said[0].ends_with(message), "{said:?}");
    let report = checked(&[("core/mcp/all.yaml", &snippet("aos", 1))], &variables()).to_string();
    assert!(
        report.contains("it belongs to the other server of this file")
            && !report.contains("remove one"),
        "{report}"
    );
}
