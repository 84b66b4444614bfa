//! `chatelaine policy test FILE`: what rules would do with examples, and which rule decides.

use std::{fs, process::Command};

use domain::{
    ids::UserId,
    json::Json,
    policy::{
        CallFacts, EffectiveAccess, Origin,
        trial::{Trial, TriedCall},
    },
};
use serde_json::{Map, json};
use tempfile::TempDir;
use time::OffsetDateTime;

use crate::support::packs::{MINIMAL, load, write_pack};

const RULES: &str = r#"
flows: { authentication: { rolesAttribute: roles } }
vars: { known: [acme], most: 5000 }
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: https://bank.example.org/mcp
      toolAccess:
        default: none
        roles: { employee: ["send_*"], cfo: [send_money] }
        approval:
          - { tools: [send_money], when: "!(args.to in vars.known)", approvers: [manager] }
          - { tools: [send_money], when: args.amount > 1000, approvers: [cfo, ceo], minApprovals: 2, selfApproval: false }
          - { tools: [send_mail], when: "claims.department == 'sales' || now.getHours() < 8", approvers: [manager] }
        confirm:
          - { tools: [send_note, send_money], when: args.to != 'me' }
        deny:
          - { tools: [send_money], when: args.amount > vars.most, reason: that is for the treasury }
        limits:
          - { tools: [send_money], sum: args.amount, per: user, over: 24h, most: 300.30, then: approve, approvers: [cfo] }
"#;

const GOOD: &str = r"
agent: demo
server: bank
examples:
  - { tool: send_money, roles: [employee], args: { to: me, amount: 20.5 }, vars: { known: [me], most: 500 }, expect: allow }
  - { tool: send_money, roles: [employee], args: { to: acme, amount: 20.5 }, expect: confirm }
  - { tool: send_note, roles: [employee], args: { to: me }, expect: allow }
  - { tool: send_money, roles: [employee], args: { to: initech, amount: 20 }, expect: { approve: [manager] } }
  - { tool: send_money, roles: [employee], args: { to: acme, amount: 1001 }, expect: { approve: [ceo, cfo], votes: 2 } }
  - { tool: send_money, roles: [employee], args: { to: acme, amount: 6000 }, expect: { deny: that is for the treasury } }
  - { tool: send_money, roles: [employee], args: { to: acme, amount: 600 }, vars: { known: [acme], most: 500 }, expect: deny }
  - tool: send_money
    roles: [employee]
    args: { to: acme, amount: 0.20 }
    earlier: [{ to: acme, amount: 150.05 }, { to: acme, amount: 150.05 }]
    expect: confirm
  - tool: send_money
    roles: [employee]
    args: { to: acme, amount: 0.21 }
    earlier: [{ to: acme, amount: 150.05 }, { to: acme, amount: 150.05 }]
    expect: { approve: [cfo], votes: 1 }
  - { tool: send_mail, roles: [employee], claims: { department: sales }, time: 2026-11-26T12:00:00Z, expect: approve }
  - { tool: send_mail, claims: { department: it, roles: [employee] }, time: 2026-11-26T12:00:00Z, expect: allow }
  - { tool: send_mail, claims: { department: it, roles: [employee] }, time: 2026-11-26T07:59:59Z, expect: approve }
  - { tool: send_mail, roles: [cfo], expect: deny }
  - { tool: send_mail, guest: true, expect: deny }
";

/// The packs, and a file of examples beside them.
fn folder(examples: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    write_pack(
        &root.path().join("packs"),
        "demo",
        &(MINIMAL.to_owned() + RULES),
    );
    fs::write(root.path().join("examples.yaml"), examples).unwrap();
    root
}

/// Whether the command was content, and what it said.
fn test(examples: &str) -> (bool, String) {
    let root = folder(examples);
    let done = Command::new(env!("CARGO_BIN_EXE_chatelaine"))
        .args(["policy", "test", "examples.yaml", "--packs", "packs"])
        .current_dir(root.path())
        .output()
        .unwrap();
    let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    (done.status.success(), said)
}

#[test]
fn examples_are_judged_by_roles_claims_time_variables_and_what_was_called_before() {
    let (good, said) = test(GOOD);
    assert!(good && said == "14 examples: all as expected\n", "{said}");
}

#[test]
fn an_example_that_differs_fails_the_command_and_names_the_rule_that_decides() {
    let cases = [
        (
            "{ tool: send_money, roles: [employee], args: { to: acme, amount: 1001 }, expect: allow }",
            "expected: it is made\n  but it waits for cfo, ceo (2 votes), by approval[1] when args.amount > 1000",
        ),
        (
            "{ tool: send_money, roles: [employee], args: { to: acme, amount: 6000 }, expect: approve }",
            "expected: it waits\n  but it is refused: that is for the treasury, by deny[0] when args.amount > vars.most",
        ),
        (
            "{ tool: send_money, roles: [employee], args: { to: acme, amount: 400 }, expect: { deny: no } }",
            "expected: it is refused: no\n  but it waits for cfo (1 vote), by limits[0]",
        ),
        (
            "{ tool: send_money, roles: [employee], args: { to: acme, amount: 1 }, expect: { approve: [cfo], votes: 2 } }",
            "expected: it waits for cfo (2 votes)\n  but it waits for the user's own confirmation, by confirm[0] when args.to != 'me'",
        ),
        (
            "{ tool: send_note, roles: [employee], args: { to: me }, expect: confirm }",
            "expected: it waits for the user's own confirmation\n  but it is made",
        ),
        (
            "{ tool: send_mail, roles: [cfo], expect: allow }",
            "expected: it is made\n  but the person does not have the tool: ",
        ),
        (
            "{ server: other, tool: x, expect: deny }",
            "demo has no server \"other\"; it has bank",
        ),
        (
            "{ agent: nobody, tool: x, expect: deny }",
            "there is no pack nobody",
        ),
    ];
    for (example, problem) in cases {
        let text = format!("agent: demo\nserver: bank\nexamples:\n  - {example}\n");
        let (good, said) = test(&text);
        assert!(!good && said.contains(problem), "{said}");
        assert!(said.starts_with("examples.yaml:4: "), "{said}");
        assert!(said.ends_with("1 example: 1 not as expected\n"), "{said}");
    }
}

#[test]
fn a_file_that_is_not_understood_says_where_and_what_to_write() {
    for (text, problems) in [
        ("", vec!["the file is empty"]),
        (
            "examples: []\nagents: demo\n",
            vec!["unknown field \"agents\"", "did you mean \"agent\""],
        ),
        (
            "agent: demo\nexamples:\n  - { tool: x, expect: allow }\n",
            vec![
                "examples.yaml:3:5",
                "write `server: …` here, or above `examples`",
            ],
        ),
        (
            "agent: demo\nserver: bank\nexamples:\n  - { tool: x, expect: maybe }\n  - { tool: x, expect: { approve: [a], deny: b } }\n",
            vec!["examples.yaml:4:24", "examples.yaml:5:24", "is not clear"],
        ),
        (
            "agent: demo\nserver: bank\nexamples:\n  - { tool: x, time: noon, origin: web, expect: allow }\n",
            vec!["is no time", "2026-11-26T21:30:00Z", "\"web\""],
        ),
    ] {
        let (good, said) = test(text);
        assert!(!good, "{said}");
        for problem in problems {
            assert!(said.contains(problem), "{problem}: {said}");
        }
    }
}

/// Every order of some amounts, beside the sum that two tiers look at.
#[test]
fn tiers_of_one_sum_are_one_sum_with_several_answers() {
    let tiers = "
mcp:
  servers:
    - name: bank
      transport: streamable-http
      url: https://bank.example/mcp
      toolAccess:
        default: public
        limits:
          - { tools: [pay], sum: args.amount, per: tenant, over: 1h, most: 10, then: approve, approvers: [cfo] }
          - { tools: [pay], sum: args.amount, per: tenant, over: 1h, most: 20.5, then: deny, reason: enough }
          - { tools: [pay], per: tenant, over: 1h, most: 4, then: deny, reason: too often }
flows: { authentication: { rolesAttribute: roles } }
";
    let pack = load(&(MINIMAL.to_owned() + tiers));
    let amounts = [0.5, 5.0, 10.0];
    for order in 0..3_usize.pow(5) {
        let (mut trial, mut sum, mut count) = (Trial::default(), 0.0, 0);
        for at in 0..5 {
            let amount = amounts[order / 3_usize.pow(at) % 3];
            let arguments = Json::from(&json!({ "amount": amount }));
            let verdict = trial.judge(&TriedCall {
                agent: pack.id(),
                server: &pack.servers[0],
                tool: "pay",
                user: &UserId("ann".into()),
                who: &EffectiveAccess::default(),
                facts: CallFacts {
                    arguments: &arguments,
                    claims: &Map::new(),
                    origin: Origin::Chat,
                    now: OffsetDateTime::UNIX_EPOCH,
                    vars: &pack.vars,
                    exceeded: &[],
                    only_reads: false,
                },
            });
            let wanted = match (sum + amount, count + 1) {
                (total, _) if total > 20.5 => "enough",
                (_, count) if count > 4 => "too often",
                (total, _) if total > 10.0 => "waits for cfo",
                _ => "it is made",
            };
            let told = verdict.to_string();
            assert!(told.contains(wanted), "{order} {at}: {told}, {wanted}");
            if !told.contains("refused") {
                (sum, count) = (sum + amount, count + 1);
            }
        }
    }
}
