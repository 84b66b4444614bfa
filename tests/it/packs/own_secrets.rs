//! The secrets of the service itself: no pack is handed one, whatever the name of its variable.

use domain::config::Environment;
use serde_json::json;

use crate::support::{
    db::TestDb,
    many::connections_of,
    packs::{MINIMAL, checked, env, errors, load_files},
    program::{self, Program, chatelaine},
    servers::venv,
    world::World,
};

const OWN: &str = "postgres://own:secret@127.0.0.1/own";
const TOKEN: &str = "an-operator-token-of-forty-characters-42";
const KEY: &str = "5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e";

/// What the packs of a service with these variables may use.
fn for_packs(variables: &[(&str, &str)]) -> Environment {
    env(variables).without_keys()
}

fn native(value: &str) -> String {
    format!(
        "{MINIMAL}mcp:\n  servers:\n    - {{ name: db, transport: stdio, command: /bin/true, env: {{ DATABASE_URL: '{value}' }}, \
         toolAccess: {{ default: public }} }}\n"
    )
}

#[test]
fn every_format_refuses_the_database_of_the_service_in_every_spelling() {
    let native_pack = native("${DATABASE_URL}");
    let with_default = native("${DATABASE_URL:-x}");
    let holodeck = |value: &str| {
        format!(
            "tools:\n  - {{ type: mcp, name: a, description: d, server: s, command: uvx, args: [s], env: {{ D: '{value}' }} }}\n"
        )
    };
    let of_holodeck = holodeck("${DATABASE_URL}");
    let of_holodeck_with_default = holodeck("${DATABASE_URL:-x}");
    let holaos = "mcp_registry:\n  servers:\n    a: { type: remote, url: 'https://a.example.org/mcp', headers: { X-D: 'x {env:DATABASE_URL}' } }\n";
    let aos = "id: a\ntransport: http\nurl: https://a.example.org/mcp\nauth_ref: DATABASE_URL\n";
    let files: [(&str, &str); 6] = [
        ("agent-pack.yaml", &native_pack),
        ("agent-pack.yaml", &with_default),
        ("agent.yaml", &of_holodeck),
        ("agent.yaml", &of_holodeck_with_default),
        ("workspace.yaml", holaos),
        ("core/mcp/a.yaml", aos),
    ];
    let own = for_packs(&[("DATABASE_URL", OWN)]);
    for file in files {
        let said = checked(&[file], &own).to_string();
        assert!(
            said.contains("`DATABASE_URL` is the service's own and is not handed to a pack")
                && said.contains("give the tool's database another name"),
            "{file:?}: {said}"
        );
        assert!(!said.contains("secret"), "{said}");
    }
    let literal = native("$${DATABASE_URL}");
    load_files(&[("agent-pack.yaml", &literal)], &own);
    // A tool's own database is handed out.
    let tools = for_packs(&[
        ("DATABASE_URL", OWN),
        ("TOOL_DATABASE_URL", "postgres://tool:secret@127.0.0.1/tool"),
    ]);
    let pack = native("${TOOL_DATABASE_URL}");
    load_files(&[("agent-pack.yaml", &pack)], &tools);
}

#[test]
fn a_variable_whose_value_is_one_of_the_services_secrets_is_refused() {
    let long = "postgres://own:a-long-password%21-1@127.0.0.1/own";
    let service = [
        ("CHATELAINE_DATABASE_URL", OWN),
        ("CHATELAINE_LISTEN_DATABASE_URL", long),
        ("CHATELAINE_OPERATOR_TOKEN", TOKEN),
        ("MCP_CONFIG_ENCRYPTION_KEYS", &format!("k2:{KEY}")),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "authorization=Bearer%20otel-1234",
        ),
    ];
    let told = |value: &str| {
        let own = for_packs(&[&service[..], &[("OTHER", value)]].concat());
        errors(&[("agent-pack.yaml", &native("${OTHER}"))], &own)
    };
    for value in [
        OWN,
        "postgresql://own:secret@db.internal:6432/own?sslmode=disable",
        "--dsn=postgres://own:secret@127.0.0.1/own",
        "a-long-password!-1",
        "host=db user=own password=a-long-password!-1",
        TOKEN,
        "Bearer an-operator-token-of-forty-characters-42",
        &KEY.to_uppercase(),
        "Bearer otel-1234",
    ] {
        let said = told(value).join("\n");
        assert!(
            said.contains("`OTHER` has what `") && said.contains("not handed to a pack"),
            "{value}: {said}"
        );
        // The same where the pack has it without a variable, or in a file.
        let empty = for_packs(&service);
        let written = checked(&[("agent-pack.yaml", &native(value))], &empty).to_string();
        assert!(written.contains("is the service's own"), "{written}");
        assert!(!written.contains(value), "{written}");
        let with_file = native("x").replace("env: {", "envFile: .env, env: {");
        let files = [
            ("agent-pack.yaml", &*with_file),
            (".env", &format!("D='{value}'\n")),
        ];
        let said = errors(&files, &empty).join("\n");
        assert!(said.contains("`D` of \".env\" has what"), "{said}");
    }
    for value in [
        "",
        "secret",
        "own",
        "postgres://tool:secret@127.0.0.1/own",
        "postgres://own:other@127.0.0.1/own",
        "k2",
        "an-operator-token",
    ] {
        assert_eq!(told(value), [""; 0], "{value}");
    }
}

#[test]
fn own_values_that_are_empty_or_short_refuse_nothing() {
    let own = for_packs(&[
        ("DATABASE_URL", ""),
        ("CHATELAINE_LISTEN_DATABASE_URL", "off"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b"),
        ("EMPTY", ""),
        ("OFF", "off"),
        ("B", "b"),
    ]);
    for value in ["${EMPTY}", "${OFF}", "${B}", "any text"] {
        load_files(&[("agent-pack.yaml", &native(value))], &own);
    }
}

/// A pack whose only server tells its environment.
fn tells_environment(variables: &str) -> String {
    let server = "tests/servers/probe.py";
    let server = std::path::absolute(server).unwrap();
    format!(
        "metadata: {{ id: tooldb, displayName: Tool database }}\nlanguages: {{ en: {{ systemPrompt: \"x\" }} }}\n\
         llm: {{ provider: none }}\nmcp:\n  servers:\n    - name: db\n      transport: stdio\n      command: {}\n      \
         args: [{}]\n      env: {variables}\n      toolAccess: {{ default: public }}\n",
        venv("python").display(),
        server.display(),
    )
}

#[tokio::test]
async fn check_smoke_and_serve_refuse_a_pack_that_asks_for_the_services_database() {
    let db = TestDb::new().await;
    let packs = tempfile::tempdir().unwrap();
    let folder = packs.path().join("tooldb");
    std::fs::create_dir(&folder).unwrap();
    let pack = tells_environment("{ DATABASE_URL: \"${DATABASE_URL}\" }");
    std::fs::write(folder.join("agent-pack.yaml"), pack).unwrap();
    let path = packs.path().to_str().unwrap();
    for command in [&["check", path][..], &["smoke", "tooldb"], &["serve"]] {
        let mut command = chatelaine(command);
        command
            .env("CHATELAINE_PACKS", path)
            .env("CHATELAINE_DATA", packs.path().join("data"))
            .env("CHATELAINE_LISTEN", "127.0.0.1:0")
            .env("DATABASE_URL", db.url.expose());
        let done = command.output().await.unwrap();
        let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
        assert!(!done.status.success(), "{said}");
        let expected = "agent-pack.yaml:10:28: error: mcp.servers[0].env.DATABASE_URL: `DATABASE_URL` is the service's own";
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains(db.url.expose()), "{said}");
    }
}

#[tokio::test]
async fn with_a_name_of_the_services_own_the_other_variable_is_the_packs() {
    let world = World::with(|setup| {
        let pack = tells_environment("{ DATABASE_URL: \"${DATABASE_URL}\" }");
        setup.packs = vec![("tooldb".to_owned(), pack)];
        setup
            .config
            .stdio_commands
            .push(venv("python").display().to_string());
        setup.env = setup.env.clone().with("DATABASE_URL", "postgres://main");
    })
    .await;
    let ann = world.user("ann", &[]).await;
    let stopped = world.stop().await;
    let mut command = program::serve(&stopped.config, &stopped.db, KEY);
    command
        .env("CHATELAINE_DATABASE_URL", stopped.db.url.expose())
        .env(
            "CHATELAINE_STDIO_ENV",
            "DATABASE_URL,CHATELAINE_DATABASE_URL,SAME",
        )
        .env("SAME", stopped.db.url.expose())
        .env("DATABASE_URL", "postgres://main");
    let program = Program::start(command).await;
    let ann = ann.at(&program.url);
    connections_of(&ann, "tooldb", &[("db", "ready")]).await;
    let told = ann.ask("tooldb", "/call db environment {}").await;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["DATABASE_URL"], json!("postgres://main"));
    for (name, value) in told.as_object().unwrap() {
        assert!(!name.contains("CHATELAINE") && name != "SAME", "{name}");
        assert_ne!(value, stopped.db.url.expose());
    }
}
