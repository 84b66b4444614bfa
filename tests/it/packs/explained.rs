//! `explain`, and what `check` says that it understood.

use std::path::Path;

use domain::secret::Secret;

use crate::support::packs::{MINIMAL, checked, env, folder_of};

const AOS: [(&str, &str); 3] = [
    (
        "core/mcp/search.yaml",
        "id: search\ntransport: http\nurl: https://mcp.example.com\nauth_ref: SEARCH_TOKEN\ntool_allowlist: [\"web_search\"]\n",
    ),
    (
        "core/mcp/files.yaml",
        "id: files\ndescription: Files of the project\ntransport: stdio\ncommand: npx\nargs: [-y, files-server, hunter2]\nenv: { KEY: hunter2, PATHS: \"${PATHS}\" }\n",
    ),
    (
        "core/skills/web-search/skill.yaml",
        "id: web-search\nmcp_binding: { server: search, tools: [web_search] }\n",
    ),
];

fn explained(
    files: &[(&str, &str)],
    variables: &[(&str, &str)],
    servers: Option<&Secret>,
) -> String {
    let root = folder_of(files);
    let text = packs::explain(&root.path().join("demo"), &env(variables), servers).unwrap();
    text.replace(&root.path().display().to_string(), "packs")
}

#[test]
fn a_pack_is_printed_with_where_each_value_comes_from() {
    let text = explained(&AOS, &[("SEARCH_TOKEN", "s3cret-value")], None);
    assert!(
        !text.contains("hunter2") && !text.contains("s3cret-value"),
        "{text}"
    );
    let text = text.split("memory:").next().unwrap().trim_end();
    insta::assert_snapshot!(text, @r#"
    # packs/demo (AOS)
    metadata:
      id: demo # the name of the folder
      defaultLanguage: en # default of imported packs
      displayName: demo # default
    languages:
      en: {} # default of imported packs
    llm:
      provider: none # default of imported packs: no variable names a model
      maxSteps: 16 # default
    mcp:
      servers:
        # Files of the project
        - name: files # core/mcp/files.yaml:1
          transport: stdio # core/mcp/files.yaml:3
          command: npx # core/mcp/files.yaml:4
          args: ["-y", files-server, ••••] # core/mcp/files.yaml:5
          env:
            KEY: •••• # core/mcp/files.yaml:6
            PATHS: "${PATHS}" # core/mcp/files.yaml:6, environment PATHS (not set)
          cwd: "." # default of AOS: the project
          timeouts:
            requestSeconds: 30 # default of AOS: 30 s
          toolAccess:
            default: public # default of imported packs: every user of the tenant
          accessMode: admin-controlled # default
          pin: hold # default
          required: false # default
          loadTools: true # default
          loadPrompts: true # default
          instances: per-tenant # default
          connect: first-use # default
        - name: search # core/mcp/search.yaml:1
          transport: streamable-http # core/mcp/search.yaml:2
          url: https://mcp.example.com # core/mcp/search.yaml:3
          headers:
            Authorization: "Bearer ${SEARCH_TOKEN}" # core/mcp/search.yaml:4, environment SEARCH_TOKEN
          tools: [web_search] # core/mcp/search.yaml:5
          timeouts:
            requestSeconds: 30 # default of AOS: 30 s
            connectSeconds: 5 # default
          toolAccess:
            default: public # default of imported packs: every user of the tenant
          accessMode: admin-controlled # default
          pin: hold # default
          required: false # default
          loadTools: true # default
          loadPrompts: true # default
          terminateOnClose: true # default
          instances: shared # default
          connect: start # default
    skills:
      - id: web-search # core/skills/web-search/skill.yaml:1
        mcpBinding:
          server: search # core/skills/web-search/skill.yaml:2
          tools: [web_search] # core/skills/web-search/skill.yaml:2
    "#);
}

#[test]
fn a_native_pack_is_printed_with_its_defaults() {
    let text = format!(
        "{MINIMAL}mcp:\n  servers:\n    - {{ name: docs, transport: streamable-http, url: \"https://docs.example.org/mcp?key=hunter2\", headers: {{ A: \"Bearer ${{T}}\", B: \"hunter2-${{T}}\" }}, toolAccess: {{ default: public }} }}\n"
    );
    let text = explained(&[("agent-pack.yaml", &text)], &[("T", "t0ken")], None);
    assert!(
        !text.contains("hunter2") && !text.contains("t0ken"),
        "{text}"
    );
    insta::assert_snapshot!(text, @r#"
    # packs/demo/agent-pack.yaml (agent-pack)
    metadata:
      id: demo # agent-pack.yaml:1
      displayName: demo # default
      defaultLanguage: en # default
    languages:
      en: {} # agent-pack.yaml:2
    llm:
      provider: none # agent-pack.yaml:3
      maxSteps: 16 # default
    mcp:
      servers:
        - name: docs # agent-pack.yaml:6
          transport: streamable-http # agent-pack.yaml:6
          url: "https://docs.example.org/mcp?••••" # agent-pack.yaml:6
          headers:
            A: "Bearer ${T}" # agent-pack.yaml:6, environment T
            B: "••••${T}" # agent-pack.yaml:6, environment T
          toolAccess:
            default: public # agent-pack.yaml:6
          accessMode: admin-controlled # default
          pin: hold # default
          required: false # default
          timeouts:
            connectSeconds: 5 # default
            requestSeconds: 60 # default
          loadTools: true # default
          loadPrompts: true # default
          terminateOnClose: true # default
          instances: shared # default
          connect: start # default
    memory:
      window: 40 # default
    flows:
      welcome:
        enabled: false # default
      authentication:
        required: true # default
        userIdAttribute: sub # default
    "#);
}

/// Also the defaults that are filled in: what is printed is a pack, when nothing had to be masked.
#[test]
fn what_is_printed_reads_as_the_same_pack() {
    let names = [
        "LLM_MODEL",
        "OPENAI_API_KEY",
        "BANK_TOKEN",
        "WISE_API_TOKEN",
        "CONTEXT7_API_KEY",
        "MCP_TIME_COMMAND",
    ];
    let env = names
        .iter()
        .fold(env(&[("LLM_PROVIDER", "openai")]), |env, name| {
            env.with(*name, "value")
        });
    let urls = [
        "OPENAI_BASE_URL",
        "BANK_MCP_URL",
        "NOTES_MCP_URL",
        "WISE_MCP_URL",
    ];
    let env = urls
        .iter()
        .fold(env, |env, name| env.with(*name, "https://x.example.org/v1"));
    let read = |root: &Path| {
        let store = packs::PackStore::load(root, &env, None).unwrap();
        domain::pack::Pack::clone(store.snapshot().packs().next().unwrap())
    };
    for name in ["bank", "context7", "github", "wise"] {
        let folder = Path::new("packs").join(name);
        let text = packs::explain(&folder, &env, None).unwrap();
        let root = tempfile::tempdir().unwrap();
        crate::support::packs::write_pack(root.path(), name, &text);
        assert!(read(root.path()).same_as(&read(&folder)), "{text}");
    }
}

#[test]
fn servers_from_the_environment_are_named_as_such() {
    let servers = Secret::new(
        r#"[{"name":"b","transport":"stdio","command":"x","env":{"K":"hunter2"},"toolAccess":{"default":"public"}}]"#,
    );
    let text = explained(&AOS[..2], &[], Some(&servers));
    assert!(
        text.contains("name: b # MCP_SERVERS_CONFIG:1") && !text.contains("hunter2"),
        "{text}"
    );
}

#[test]
fn a_broken_pack_is_not_explained_but_reported() {
    let root = folder_of(&[("agent.yaml", "tools: [{ type: mcp }]")]);
    let error = packs::explain(root.path(), &env(&[]), None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("ValidationError: 'server' must be a non-empty identifier"),
        "{error}"
    );
}

#[test]
fn check_names_the_format_and_what_it_understood() {
    let access = "authentication: { rolesAttribute: roles }\ntoolAccess: { files: { roles: { staff: [read] }, approval: [{ tools: [read], approvers: [boss] }] } }\n";
    let files = [AOS[0], AOS[1], AOS[2], ("access.yaml", access)];
    let report = checked(&files, &env(&[("SEARCH_TOKEN", "s"), ("PATHS", "p")]));
    insta::assert_snapshot!(report.understood[0], @r"
    demo (AOS)
      files   stdio npx: all tools; by role, with approval for read
      search  streamable-http https://mcp.example.com: web_search; everyone
      skills: /web-search calls search web_search
      roles: boss, staff
    ");
}

#[test]
fn check_says_who_may_call_where_little_is_open() {
    let pack = |access: &str| {
        let server = format!(
            "{{ name: s, transport: streamable-http, url: 'https://x.example.org', {access} }}"
        );
        format!(
            "metadata: {{ id: demo }}\nlanguages: {{ en: {{}} }}\nllm: {{ provider: none }}\nmcp: {{ servers: [{server}] }}\n"
        )
    };
    for (access, said) in [
        ("toolAccess: { default: none }", "all tools; admins only"),
        ("toolAccess: {}", "all tools; admins only"),
        (
            "toolAccess: { default: none, public: [a] }",
            "all tools; what is public",
        ),
        (
            "toolAccess: { default: admin, public: [a] }",
            "all tools; what is public",
        ),
        (
            "loadTools: false, toolAccess: { default: public }",
            "no tools; everyone",
        ),
    ] {
        let report = checked(&[("agent-pack.yaml", &pack(access))], &env(&[]));
        let understood = report.understood[0].to_string();
        assert!(understood.contains(said), "{access}: {understood}");
    }
}

#[test]
fn check_understands_the_packs_that_come_with_the_program() {
    let report = packs::check_allowing_unset(Path::new("packs"), &env(&[]), None);
    let told: Vec<_> = report.understood.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(told.join("\n"), @r"
    bank (agent-pack)
      bank   streamable-http ${BANK_MCP_URL}: all tools; by role, with approval for send_money, create_invoice
      time   stdio ${MCP_TIME_COMMAND}: all tools; everyone
      notes  streamable-http ${NOTES_MCP_URL}: all tools; everyone, with a credential of their own
      skills: /rate calls bank get_exchange_rate, /pay calls bank send_money
      roles: cfo, employee, finance, finance-manager, guest
    context7 (agent-pack)
      context7  streamable-http https://mcp.context7.com/mcp: all tools; everyone
    github (agent-pack)
      github  streamable-http https://api.githubcopilot.com/mcp/: all tools; what is public, with a credential of their own
    wise (agent-pack)
      wise  streamable-http ${WISE_MCP_URL}: all tools; by role, with approval for send_money, create_invoice
      roles: cfo, employee, finance, finance-manager, guest
    ");
}

#[test]
fn a_reference_without_a_rule_is_printed_as_open_to_users_also_one_of_a_capability() {
    let pack = format!(
        "{MINIMAL}capabilities: [research]\nmcpServers: {{ kg: {{ ref: neo4j }}, own: {{ ref: aa, toolAccess: {{ default: none }} }} }}\n"
    );
    let files = [
        ("agent-pack.yaml", pack.as_str()),
        (
            "../capabilities/research.yaml",
            "mcpServers: { docs: { ref: context-store } }\n",
        ),
    ];
    let text = explained(&files, &[], None);
    let users = "default: users # default of references: every user of the tenant, not guests";
    assert_eq!(text.matches(users).count(), 2, "{text}");
    assert!(text.contains("ref: context-store # a capability"), "{text}");
    let said = checked(&files, &env(&[])).to_string();
    for server in ["kg", "docs"] {
        let sentence = format!(
            "there is no `toolAccess` for {server}, so every user of the tenant may call its tools; guests may not"
        );
        assert!(said.contains(&sentence), "{said}");
    }
    assert!(!said.contains("for own"), "{said}");
}
