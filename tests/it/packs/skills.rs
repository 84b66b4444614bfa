//! `skills` of a native pack.

use crate::support::packs::{MINIMAL, env, errors, load};

const SERVER: &str = "mcp:\n  servers:\n    - { name: search, transport: stdio, command: x, tools: [web_search, \"read_*\"], toolAccess: { default: public } }\n";

#[test]
fn a_skill_names_a_server_and_its_tools() {
    let skills = "skills: [{ id: web-search, name: Web search, description: Finds pages, mcpBinding: { server: search, tools: [web_search, read_page] } }, { id: s2, mcpBinding: { server: search, tools: [read_x] } }]\n";
    let pack = load(&format!("{MINIMAL}{SERVER}{skills}"));
    let [first, second] = &pack.skills[..] else {
        panic!("two skills")
    };
    assert_eq!(
        (
            first.id.as_str(),
            first.name(&pack, None),
            first.description(&pack, Some("es"))
        ),
        ("web-search", "Web search", "Finds pages")
    );
    assert_eq!(
        (first.server.as_str(), &first.tools[..]),
        (
            "search",
            &["web_search".to_owned(), "read_page".to_owned()][..]
        )
    );
    assert_eq!(
        (second.name(&pack, None), second.description(&pack, None)),
        ("s2", "")
    );
}

#[test]
fn a_skill_has_names_by_language_and_values_of_its_own_in_their_order() {
    let skills = "skills: [{ id: find, name: { en: Find, es: Buscar }, mcpBinding: { server: search, tools: [read_x] }, defaults: { z: EUR, a: 2, m: [x] } }]\n";
    let pack = load(&format!("{MINIMAL}{SERVER}{skills}"));
    let skill = &pack.skills[0];
    let names = ["es-MX", "de"].map(|locale| skill.name(&pack, Some(locale)));
    assert_eq!(names, ["Buscar", "Find"]);
    assert_eq!(skill.defaults.to_string(), r#"{"z":"EUR","a":2,"m":["x"]}"#);
    let skills = skills.replace("{ z: EUR, a: 2, m: [x] }", "[EUR]");
    assert_eq!(
        errors(
            &[("agent-pack.yaml", &format!("{MINIMAL}{SERVER}{skills}"))],
            &env(&[])
        )
        .len(),
        1
    );
}

#[test]
fn a_skill_may_name_a_server_of_the_registry() {
    let skills = "mcpServers: { docs: { ref: store } }\nskills: [{ id: find, mcpBinding: { server: docs, tools: [x] } }]\n";
    assert_eq!(
        load(&format!("{MINIMAL}{skills}")).skills[0]
            .server
            .as_str(),
        "docs"
    );
}

#[test]
fn a_skill_that_could_never_run_is_refused() {
    let with = |skill: &str| {
        let text = format!("{MINIMAL}{SERVER}skills: [{skill}]\n");
        let found = errors(&[("agent-pack.yaml", &text)], &env(&[]));
        found
            .iter()
            .map(|line| line.trim_start_matches("skills").to_owned())
            .collect::<Vec<_>>()
    };
    let binding = "mcpBinding: { server: search, tools: [web_search] }";
    for (skill, expected) in [
        (format!("{{ {binding} }}"), "[0].id: missing"),
        ("{ id: a }".to_owned(), "[0].mcpBinding: missing"),
        (
            format!("{{ id: Web, {binding} }}"),
            "[0].id: \"Web\" is not the id of a skill; use lower-case letters, digits and `-`, at most 64",
        ),
        (
            format!("{{ id: menu, {binding} }}"),
            "[0].id: /menu is a command of the program; choose another id",
        ),
        (
            format!("{{ id: a, {binding} }}, {{ id: a, {binding} }}"),
            "[1]: the skill \"a\" is there already",
        ),
        (
            "{ id: a, mcpBinding: { server: x, tools: [y] } }".to_owned(),
            "[0].mcpBinding.server: there is no server \"x\"",
        ),
        (
            "{ id: a, mcpBinding: { server: search, tools: [] } }".to_owned(),
            "[0].mcpBinding.tools: the list is empty",
        ),
        (
            "{ id: a, mcpBinding: { server: search, tools: [delete] } }".to_owned(),
            "[0].mcpBinding.tools[0]: Tool \"delete\" is not allowlisted for MCP server \"search\"",
        ),
        (
            "{ id: a, mcpBinding: { server: search, tools: [\"web_*\"] } }".to_owned(),
            "[0].mcpBinding.tools[0]: \"web_*\" names no one tool",
        ),
    ] {
        assert_eq!(with(&skill), [expected], "{skill}");
    }
}
