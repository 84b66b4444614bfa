//! Each field of the native format, by what it does to the pack.

use std::{fs, time::Duration};

use domain::{
    pack::{Pack, Provider},
    pin::Pin,
    policy::{ApprovalPolicy, Condition, DefaultAccess, ToolPattern},
    secret::Secret,
    server::{
        AccessMode, Choice, Endpoint, FieldKind, Remote, ServerSpec, Timeouts, UserField,
        UserHeader,
    },
};
use packs::PackStore;

use crate::support::packs::{
    MINIMAL, env, headers, load, load_with, server, server_with, write_pack,
};

fn patterns(tools: &[&str]) -> Vec<ToolPattern> {
    tools
        .iter()
        .map(|tool| ToolPattern((*tool).to_owned()))
        .collect()
}

fn with_llm(llm: &str) -> Pack {
    load(&MINIMAL.replace("{ provider: none }", llm))
}

#[test]
fn the_least_pack_has_the_documented_defaults() {
    let pack = load(MINIMAL);
    assert_eq!(pack.id().as_str(), "demo");
    assert_eq!(pack.metadata.display_name, "demo");
    assert_eq!(pack.metadata.default_language, "en");
    assert_eq!((pack.memory.window, pack.llm.max_steps), (40, 16));
    assert!(!pack.flows.welcome.enabled);
    let authentication = pack.flows.authentication;
    assert!(authentication.required && authentication.admin_users.is_empty());
    assert_eq!(authentication.user_id_attribute, "sub");
    assert_eq!(
        (authentication.roles_attribute, authentication.default_role),
        (None, None)
    );
    assert!(pack.servers.is_empty());
}

#[test]
fn metadata_names_and_describes_the_pack() {
    let metadata = "{ id: wise-agent, displayName: Wise agent, description: Money, tags: [a, b], defaultLanguage: es }";
    let pack = load(
        &MINIMAL
            .replace("{ id: demo }", metadata)
            .replace("{ en: {} }", "{ es: {}, en: {} }"),
    );
    let metadata = pack.metadata;
    assert_eq!(metadata.id.as_str(), "wise-agent");
    assert_eq!(
        (
            metadata.display_name.as_str(),
            metadata.description.as_str()
        ),
        ("Wise agent", "Money")
    );
    assert_eq!(metadata.tags, ["a", "b"]);
    assert_eq!(metadata.default_language, "es");
}

#[test]
fn the_only_language_is_the_default_one() {
    assert_eq!(
        load(&MINIMAL.replace("en:", "pt-BR:"))
            .metadata
            .default_language,
        "pt-BR"
    );
}

#[test]
fn languages_hold_greeting_prompt_and_strings() {
    let texts = "{ en: { greetingMessage: \"Hello {userName}\", systemPrompt: Be brief, strings: { SAVED: Saved, NONE: \"\" } } }";
    let pack = load(&MINIMAL.replace("{ en: {} }", texts));
    let language = pack.language(None);
    assert_eq!(
        language.greeting_message.as_deref(),
        Some("Hello {userName}")
    );
    assert_eq!(language.system_prompt.as_deref(), Some("Be brief"));
    assert_eq!(language.strings["SAVED"], "Saved");
    assert_eq!(language.strings["NONE"], "");
}

#[test]
fn llm_chooses_and_tunes_the_model() {
    let llm = with_llm(
        "{ provider: anthropic, model: m, baseUrl: \"https://m.example.org/v1\", apiKey: \"${TOKEN}\", agentPrompt: More, temperature: 0.3, maxTokens: 2048, maxSteps: 5 }",
    )
    .llm;
    assert_eq!(
        (llm.provider, llm.model.as_str()),
        (Provider::Anthropic, "m")
    );
    assert_eq!(llm.base_url.unwrap().as_str(), "https://m.example.org/v1");
    assert_eq!(llm.api_key.unwrap().expose(), "t0ken");
    assert_eq!(llm.agent_prompt.as_deref(), Some("More"));
    assert_eq!(
        (llm.temperature, llm.max_tokens, llm.max_steps),
        (Some(0.3), Some(2048), 5)
    );
}

#[test]
fn llm_may_name_other_models() {
    let llm = with_llm(
        "{ provider: anthropic, model: m, apiKey: \"${TOKEN}\", temperature: 0.3, maxTokens: 100, fallback: [{ provider: openai, model: o, apiKey: \"${TOKEN}\", maxTokens: 50 }, { provider: ollama, model: q }] }",
    )
    .llm;
    let others: Vec<_> = llm
        .fallback
        .iter()
        .map(|other| {
            (
                other.provider,
                other.model.as_str(),
                other.temperature,
                other.max_tokens,
            )
        })
        .collect();
    assert_eq!(
        others,
        [
            (Provider::Openai, "o", Some(0.3), Some(50)),
            (Provider::Ollama, "q", Some(0.3), Some(100)),
        ]
    );
    assert_eq!(llm.fallback[0].api_key.as_ref().unwrap().expose(), "t0ken");
    for (fallback, words) in [
        ("[{ provider: none }]", "names no model"),
        (
            "[{ provider: openai, model: m, apiKey: x, agentPrompt: More }]",
            "agentPrompt",
        ),
        (
            "[{ provider: openai, model: m, apiKey: x, fallback: [] }]",
            "fallback",
        ),
        ("openai", "llm.fallback"),
    ] {
        let llm = format!("{{ provider: openai, model: m, apiKey: x, fallback: {fallback} }}");
        let folder = tempfile::tempdir().unwrap();
        write_pack(
            folder.path(),
            "demo",
            &MINIMAL.replace("{ provider: none }", &llm),
        );
        let report = PackStore::load(folder.path(), &env(&[]), None)
            .err()
            .unwrap()
            .to_string();
        assert!(report.contains(words), "{words}: {report}");
    }
}

#[test]
fn every_provider_has_its_word() {
    let provider = |word: &str| {
        with_llm(&format!("{{ provider: {word}, model: m }}"))
            .llm
            .provider
    };
    let all = ["openai", "anthropic", "gemini", "ollama", "none"].map(provider);
    assert_eq!(
        all,
        [
            Provider::Openai,
            Provider::Anthropic,
            Provider::Gemini,
            Provider::Ollama,
            Provider::None
        ]
    );
    assert_eq!(with_llm("{ model: m }").llm.provider, Provider::Openai);
}

#[test]
fn an_empty_variable_means_no_base_url_no_key_and_no_model() {
    let llm = with_llm(
        "{ provider: none, model: \"${EMPTY}\", baseUrl: \"${EMPTY}\", apiKey: \"${EMPTY}\" }",
    )
    .llm;
    assert_eq!(
        (llm.model.as_str(), llm.base_url, llm.api_key),
        ("", None, None)
    );
}

#[test]
fn memory_bounds_the_history() {
    assert_eq!(
        load(&format!("{MINIMAL}memory: {{ window: 7 }}\n"))
            .memory
            .window,
        7
    );
}

#[test]
fn welcome_says_a_text_of_the_pack() {
    let pack = MINIMAL.replace(
        "en: {}",
        "en: { greetingMessage: Hi, strings: { HELLO: Hello } }",
    );
    let welcome = |flow: &str| {
        load(&format!("{pack}flows: {{ welcome: {flow} }}\n"))
            .flows
            .welcome
    };
    let greeting = welcome("{ enabled: true }");
    assert_eq!(
        (greeting.enabled, greeting.template_key.as_str()),
        (true, "greetingMessage")
    );
    assert_eq!(welcome("{ templateKey: HELLO }").template_key, "HELLO");
    assert!(welcome("{ templateKey: HELLO }").enabled);
    assert!(!welcome("{ enabled: false, templateKey: NONE }").enabled);
}

#[test]
fn authentication_says_who_is_who() {
    let flow = "{ required: false, userIdAttribute: email, rolesAttribute: groups, defaultRole: user, adminUsers: [alice@example.org, \"${TOKEN}\"] }";
    let authentication = load(&format!("{MINIMAL}flows: {{ authentication: {flow} }}\n"))
        .flows
        .authentication;
    assert!(!authentication.required);
    assert_eq!(authentication.user_id_attribute, "email");
    assert_eq!(authentication.roles_attribute.as_deref(), Some("groups"));
    assert_eq!(authentication.default_role.as_deref(), Some("user"));
    assert_eq!(authentication.admin_users, ["alice@example.org", "t0ken"]);
}

#[test]
fn a_server_over_http_has_an_address_and_headers() {
    let spec = server(
        "transport: streamable-http\nurl: https://docs.example.org/mcp?a=1\nheaders: { Authorization: \"Bearer ${TOKEN}\", X-Plain: \"a$${b}\" }\ntoolAccess: {}",
    );
    assert_eq!(spec.id.as_str(), "docs");
    assert_eq!(
        headers(&spec),
        [("Authorization", "Bearer t0ken"), ("X-Plain", "a${b}")]
    );
    let Endpoint::Remote { url, .. } = &spec.endpoint else {
        panic!("not over HTTP")
    };
    assert_eq!(url.as_str(), "https://docs.example.org/mcp?a=1");
}

#[test]
fn a_server_is_shared_optional_and_patient_unless_it_says_otherwise() {
    let spec = server("transport: stdio\ncommand: docs\ntoolAccess: {}");
    assert_eq!(spec.access_mode, AccessMode::AdminControlled);
    assert_eq!(
        (spec.required, spec.timeouts, spec.tools),
        (false, Timeouts::default(), None)
    );
    let spec = server(
        "transport: stdio\ncommand: docs\ntoolAccess: {}\nrequired: true\naccessMode: admin-controlled\ntimeouts: { connectSeconds: 2, requestSeconds: 0.5 }\ntools: []",
    );
    assert!(spec.required);
    assert_eq!(
        spec.timeouts,
        Timeouts {
            connect: Duration::from_secs(2),
            start: Some(Duration::from_secs(2)),
            request: Duration::from_millis(500),
            stream_idle: None,
            idle: None,
        }
    );
    assert_eq!(spec.tools, Some(Vec::new()));
}

#[test]
fn a_server_with_an_address_is_one_for_all_and_a_process_one_for_each_tenant_unless_it_says_otherwise()
 {
    let remote = "transport: streamable-http\nurl: https://docs.example.org\ntoolAccess: {}";
    let child = "transport: stdio\ncommand: docs\ntoolAccess: {}";
    for (text, more, per_tenant, at_start) in [
        (remote, "", false, true),
        (remote, "connect: first-use", false, false),
        (remote, "instances: per-tenant", true, false),
        (remote, "instances: per-tenant\nconnect: start", true, true),
        (child, "", true, false),
        (child, "instances: shared", false, false),
        (child, "instances: shared\nconnect: start", false, true),
    ] {
        let spec = server(&format!("{text}\n{more}"));
        assert_eq!(
            (spec.per_tenant, spec.at_start),
            (per_tenant, at_start),
            "{more}"
        );
    }
    let spec = server(&format!("{child}\ntimeouts: {{ idleSeconds: 90 }}"));
    assert_eq!(spec.timeouts.idle, Some(Duration::from_secs(90)));
}

#[test]
fn a_child_has_a_command_arguments_variables_and_a_folder() {
    let root = tempfile::tempdir().unwrap();
    let text = format!(
        "{MINIMAL}mcp:\n  servers:\n    - {{ name: docs, transport: stdio, command: /usr/bin/docs, args: [--key, \"${{TOKEN}}\"], env: {{ A: own, T: \"${{TOKEN}}\" }}, envFile: vars/docs.env, cwd: work, toolAccess: {{}} }}\n"
    );
    write_pack(root.path(), "demo", &text);
    fs::create_dir(root.path().join("demo/work")).unwrap();
    fs::create_dir(root.path().join("demo/vars")).unwrap();
    let file = "# comment\nexport A=file\nB=\"two words\" # said\nC='pa$$word'\nD=a\\$b\nE=\nJ={\"a\":1,\"b\":\"x\"}\nL=[\"x\",\"y\"]\nM=a\\nb\nN=\"a\\nb\"\nO=a'b'c\nP=a b # c\nQ=C:\\dir\\x\nR=ü#ü\nS='one\ntwo'\n";
    fs::write(root.path().join("demo/vars/docs.env"), file).unwrap();
    let store = PackStore::load(root.path(), &env(&[("TOKEN", "t0ken")]), None).unwrap();
    let endpoint = store.snapshot().packs().next().unwrap().servers[0]
        .endpoint
        .clone();
    let Endpoint::Stdio {
        command,
        args,
        env,
        cwd,
        ..
    } = endpoint
    else {
        panic!("not a child")
    };
    assert_eq!(command, "/usr/bin/docs");
    assert_eq!(
        args.iter().map(Secret::expose).collect::<Vec<_>>(),
        ["--key", "t0ken"]
    );
    let env: Vec<_> = env
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    let expected = [
        ("A", "own"),
        ("B", "two words"),
        ("C", "pa$$word"),
        ("D", "a$b"),
        ("E", ""),
        ("J", r#"{"a":1,"b":"x"}"#),
        ("L", r#"["x","y"]"#),
        ("M", r"a\nb"),
        ("N", "a\nb"),
        ("O", "a'b'c"),
        ("P", "a b"),
        ("Q", r"C:\dir\x"),
        ("R", "ü#ü"),
        ("S", "one\ntwo"),
        ("T", "t0ken"),
    ];
    assert_eq!(env, expected);
    assert_eq!(cwd, Some(root.path().join("demo/work")));
}

#[test]
fn an_env_file_behind_a_link_stays_in_the_folder() {
    let root = tempfile::tempdir().unwrap();
    let text = format!(
        "{MINIMAL}mcp: {{ servers: [{{ name: x, transport: stdio, command: x, envFile: in.env, toolAccess: {{}} }}] }}\n"
    );
    write_pack(root.path(), "demo", &text);
    fs::write(root.path().join("out.env"), "A=1\n").unwrap();
    std::os::unix::fs::symlink("../out.env", root.path().join("demo/in.env")).unwrap();
    let error = PackStore::load(root.path(), &env(&[]), None)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("\"in.env\" leads out of the folder of the pack"),
        "{error}"
    );
}

#[test]
fn tools_is_an_allowlist_of_patterns() {
    let spec =
        server("transport: stdio\ncommand: docs\ntools: [search, \"list_*\"]\ntoolAccess: {}");
    assert_eq!(spec.tools, Some(patterns(&["search", "list_*"])));
}

#[test]
fn tool_access_is_absent_legacy_or_by_role() {
    let access =
        |lines: &str| server(&format!("transport: stdio\ncommand: docs\n{lines}")).tool_access;
    assert_eq!(access(""), None);
    let words = ["none", "all", "public", "users", "admin"].map(|word| {
        access(&format!("toolAccess: {{ default: {word} }}"))
            .unwrap()
            .default
    });
    assert_eq!(
        words,
        [
            DefaultAccess::None,
            DefaultAccess::All,
            DefaultAccess::Public,
            DefaultAccess::Users,
            DefaultAccess::Admin
        ]
    );
    assert_eq!(
        access("toolAccess: {}").unwrap().default,
        DefaultAccess::None
    );
    let legacy = access("toolAccess: { default: admin, public: [search, \"read_*\"] }").unwrap();
    assert_eq!(
        (legacy.public, legacy.roles),
        (patterns(&["search", "read_*"]), None)
    );
    let roles = access("toolAccess: { roles: { guest: [search], boss: [] } }")
        .unwrap()
        .roles
        .unwrap();
    assert_eq!(
        (&roles["guest"], &roles["boss"]),
        (&patterns(&["search"]), &Vec::new())
    );
    assert_eq!(
        access("toolAccess: { roles: {} }")
            .unwrap()
            .roles
            .unwrap()
            .len(),
        0
    );
}

#[test]
fn approval_policies_have_tools_approvers_and_terms() {
    let lines = "transport: stdio\ncommand: docs\ntoolAccess:\n  default: all\n  approval:\n    - { tools: [a, \"b_*\"], approvers: [cfo] }\n    - { tools: [c], approvers: [cfo, ceo], timeoutMinutes: 5, minApprovals: 2, selfApproval: false }";
    let approval = server(lines).tool_access.unwrap().approval;
    let plain = ApprovalPolicy {
        tools: patterns(&["a", "b_*"]),
        when: None,
        approvers: vec!["cfo".to_owned()],
        timeout_minutes: 60,
        min_approvals: 1,
        self_approval: true,
    };
    let strict = ApprovalPolicy {
        tools: patterns(&["c"]),
        when: None,
        approvers: vec!["cfo".to_owned(), "ceo".to_owned()],
        timeout_minutes: 5,
        min_approvals: 2,
        self_approval: false,
    };
    assert_eq!(approval, [plain, strict]);
}

#[test]
fn confirmations_have_tools_a_condition_and_a_time() {
    let lines = "transport: stdio\ncommand: docs\ntoolAccess:\n  default: all\n  confirm:\n    - { tools: [a, \"b_*\"] }\n    - { tools: [c], when: args.x > 1, timeoutMinutes: 5 }";
    let access = server(lines).tool_access.unwrap();
    let when = Condition::parse("args.x > 1").unwrap();
    let plain = ApprovalPolicy::confirmation(patterns(&["a", "b_*"]), None, 60);
    let some = ApprovalPolicy::confirmation(patterns(&["c"]), Some(when), 5);
    assert_eq!(access.confirm, [plain, some]);
    assert_eq!(access.approval, []);
}

fn personal(fields: &str) -> ServerSpec {
    server(&format!(
        "transport: streamable-http\nurl: https://docs.example.org/mcp\naccessMode: user-controlled\ntoolAccess: {{}}\nuserConfig: {{ fields: [{fields}] }}"
    ))
}

fn label(texts: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    texts
        .iter()
        .map(|(language, text)| ((*language).to_owned(), (*text).to_owned()))
        .collect()
}

#[test]
fn a_personal_server_asks_for_a_token() {
    let spec = personal(
        "{ name: token, type: secret, label: { en: Your token, es: Tu token }, headerTemplate: \"Bearer {value}\" }",
    );
    assert_eq!(spec.access_mode, AccessMode::UserControlled);
    let token = UserField {
        name: "token".to_owned(),
        kind: FieldKind::Secret,
        label: label(&[("en", "Your token"), ("es", "Tu token")]),
        required: true,
        options: Vec::new(),
        header: Some(UserHeader {
            name: "Authorization".to_owned(),
            template: "Bearer {value}".to_owned(),
        }),
        env_name: None,
        query_name: None,
    };
    assert_eq!(spec.user_config, [token]);
}

#[test]
fn several_fields_may_feed_one_header() {
    let fields = personal("{ name: user, label: Name }, { name: token, type: secret, headerName: X-Auth, headerTemplate: \"Basic {base64(user:token)}\" }").user_config;
    assert_eq!(
        (fields[0].kind, &fields[0].header),
        (FieldKind::Text, &None)
    );
    assert_eq!(fields[0].label, label(&[("en", "Name")]));
    let header = UserHeader {
        name: "X-Auth".to_owned(),
        template: "Basic {base64(user:token)}".to_owned(),
    };
    assert_eq!(fields[1].header, Some(header));
    assert_eq!(fields[1].label, label(&[("en", "token")]));
}

#[test]
fn a_select_offers_options() {
    let fields = personal("{ name: region, type: select, required: false, queryName: r, options: [eu, { value: us, label: { en: America } }] }").user_config;
    assert_eq!(
        (fields[0].kind, fields[0].required),
        (FieldKind::Select, false)
    );
    assert_eq!(fields[0].query_name.as_deref(), Some("r"));
    let choice = |value: &str, text: &str| Choice {
        value: value.to_owned(),
        label: label(&[("en", text)]),
    };
    assert_eq!(
        fields[0].options,
        [choice("eu", "eu"), choice("us", "America")]
    );
}

#[test]
fn a_personal_child_gets_variables() {
    let spec = server(
        "transport: stdio\ncommand: docs\naccessMode: user-controlled\ntoolAccess: {}\nuserConfig: { fields: [{ name: key, type: text, envName: API_KEY }, { name: site, type: url, envName: SITE }, { name: beta, type: boolean, envName: BETA }] }",
    );
    assert_eq!(spec.user_config[0].env_name.as_deref(), Some("API_KEY"));
    assert_eq!(
        [spec.user_config[1].kind, spec.user_config[2].kind],
        [FieldKind::Url, FieldKind::Boolean]
    );
}

#[test]
fn a_header_without_a_template_carries_the_value_itself() {
    let fields = personal("{ name: key, headerName: X-Key }").user_config;
    assert_eq!(
        fields[0].header,
        Some(UserHeader {
            name: "X-Key".to_owned(),
            template: "{value}".to_owned()
        })
    );
}

#[test]
fn variables_may_stand_for_numbers_and_booleans() {
    let text = MINIMAL.replace(
        "{ provider: none }",
        "{ provider: \"${P}\", temperature: \"${T}\", maxSteps: \"${S}\" }",
    ) + "memory: { window: \"1${S}\" }\nflows: { authentication: { required: \"${R}\" } }\n";
    let pack = load_with(
        &text,
        &env(&[("P", "none"), ("T", "0.5"), ("S", "4"), ("R", "false")]),
    )
    .unwrap();
    assert_eq!(
        (pack.llm.temperature, pack.llm.max_steps, pack.memory.window),
        (Some(0.5), 4, 14)
    );
    assert!(!pack.flows.authentication.required);
}

#[test]
fn variables_are_replaced_in_values_and_nowhere_else() {
    let text = format!(
        "# ${{NOT_SET}}\n{}",
        MINIMAL.replace("en: {}", "en: { strings: { \"${TOKEN}\": \"${TOKEN}\" } }")
    );
    let pack = load(&text);
    assert_eq!(pack.language(None).strings["${TOKEN}"], "t0ken");
}

#[test]
fn a_value_that_looks_like_a_reference_arrives_as_it_is() {
    let lines = "transport: streamable-http\nurl: https://docs.example.org\nheaders: { X: \"${A}\" }\ntoolAccess: {}";
    let spec = server_with(lines, &env(&[("A", "${B}"), ("B", "s3cret")]));
    assert_eq!(headers(&spec), [("X", "${B}")]);
}

#[test]
fn aliases_and_block_texts_work() {
    let text = "metadata: { id: demo }\nlanguages:\n  en: &texts\n    systemPrompt: |\n      Be brief.\n      Be kind.\n  es: *texts\nllm: { provider: none }\n";
    let pack = load(text);
    assert_eq!(
        pack.language(Some("es")).system_prompt.as_deref(),
        Some("Be brief.\nBe kind.\n")
    );
}

#[test]
fn every_transport_has_its_word() {
    let remote = |word: &str, url: &str| {
        let spec = server(&format!(
            "transport: {word}\nurl: {url}\nheaders: {{ A: b }}\ntoolAccess: {{}}"
        ));
        let Endpoint::Remote { transport, .. } = spec.endpoint else {
            panic!("not remote")
        };
        transport
    };
    assert_eq!(
        remote("streamable-http", "https://docs.example.org"),
        Remote::StreamableHttp
    );
    assert_eq!(remote("sse", "https://docs.example.org/sse"), Remote::Sse);
    assert_eq!(
        remote("websocket", "wss://docs.example.org"),
        Remote::WebSocket
    );
}

#[test]
fn what_is_discovered_and_how_a_session_ends_can_be_chosen() {
    let spec = server("transport: streamable-http\nurl: https://docs.example.org\ntoolAccess: {}");
    assert!(spec.load_tools && spec.load_prompts && spec.terminate_on_close);
    let spec = server(
        "transport: streamable-http\nurl: https://docs.example.org\ntoolAccess: {}\nloadTools: false\nloadPrompts: false\nterminateOnClose: false\ntimeouts: { streamIdleSeconds: 90 }",
    );
    assert!(!spec.load_tools && !spec.load_prompts && !spec.terminate_on_close);
    assert_eq!(spec.timeouts.stream_idle, Some(Duration::from_secs(90)));
}

#[test]
fn what_becomes_of_a_changed_tool_can_be_chosen() {
    let pin = |line: &str| {
        let spec = "transport: streamable-http\nurl: https://docs.example.org\ntoolAccess: {}\n";
        server(&format!("{spec}{line}")).pin
    };
    assert_eq!(pin(""), Pin::Hold);
    for (word, wanted) in [("hold", Pin::Hold), ("tell", Pin::Tell), ("off", Pin::Off)] {
        assert_eq!(pin(&format!("pin: {word}")), wanted);
    }
    // With a list for each user, only the first of them would have tools.
    let own = "accessMode: user-controlled\nuserConfig: { fields: [{ name: token, type: secret, headerTemplate: \"Bearer {value}\" }] }";
    assert_eq!(pin(own), Pin::Hold);
    assert_eq!(pin(&format!("{own}\ncatalog: per-user")), Pin::Tell);
    assert_eq!(
        pin(&format!("{own}\ncatalog: per-user\npin: hold")),
        Pin::Hold
    );
}

#[test]
fn a_call_may_have_words_for_people() {
    let spec = server(
        "transport: streamable-http\nurl: https://docs.example.org\ntoolAccess: {}\nsummaries: { find: \"Search for {query}\", pay: { en: \"Send {amount}\", es: \"Enviar {amount}\" } }",
    );
    assert_eq!(
        spec.summaries["find"],
        label(&[("en", "Search for {query}")])
    );
    assert_eq!(
        spec.summaries["pay"],
        label(&[("en", "Send {amount}"), ("es", "Enviar {amount}")])
    );
}

#[test]
fn a_child_may_have_an_encoding_and_a_configuration() {
    let spec = server(
        "transport: stdio\ncommand: docs\nencoding: latin1\nconfig: { a: [1, \"${TOKEN}\"], b: { c: true } }\ntoolAccess: {}",
    );
    let Endpoint::Stdio { encoding, env, .. } = spec.endpoint else {
        panic!("not a child")
    };
    assert_eq!(encoding.as_deref(), Some("latin1"));
    assert_eq!(
        env["MCP_CONFIG"].expose(),
        r#"{"a":[1,"t0ken"],"b":{"c":true}}"#
    );
    let spec = server("transport: stdio\ncommand: docs\nencoding: UTF-8\ntoolAccess: {}");
    let Endpoint::Stdio { encoding, .. } = spec.endpoint else {
        panic!("not a child")
    };
    assert_eq!(encoding, None);
}

#[test]
fn parameters_may_be_spelled_as_in_the_registry_document() {
    assert!(
        load(&format!(
            "{MINIMAL}params_schema: {{ topic: {{ required: true }} }}\n"
        ))
        .params
        .unwrap()["topic"]
            .required
    );
}

#[test]
fn a_personal_server_keeps_the_operators_headers_apart() {
    let text = "transport: streamable-http
url: https://docs.example.org/mcp
accessMode: user-controlled
headers: { Authorization: \"Bearer ${TOKEN}\", X-Tenant: { value: \"${TENANT}\", shared: true }, X-Plain: \"yes\" }
userConfig: { fields: [{ name: token, type: secret, headerTemplate: \"Bearer {value}\" }], test: { tool: whoami, arguments: { limit: 1 } } }
toolAccess: { default: public }";
    let variables = env(&[("TOKEN", "hunter2-admin"), ("TENANT", "tenant-7")]);
    let spec = server_with(text, &variables);
    assert_eq!(
        headers(&spec),
        [("X-Tenant", "tenant-7"), ("X-Plain", "yes")]
    );
    let discovery = spec.for_discovery().unwrap();
    assert_eq!(
        headers(&discovery),
        [
            ("X-Tenant", "tenant-7"),
            ("X-Plain", "yes"),
            ("Authorization", "Bearer hunter2-admin")
        ]
    );
    let test = spec.credential_test.unwrap();
    assert_eq!((test.tool.as_str(), test.arguments.len()), ("whoami", 1));
}

#[test]
fn without_its_variable_the_operators_header_is_a_warning() {
    let text = format!(
        "{MINIMAL}mcp:\n  servers:\n    - {{ name: docs, transport: streamable-http, url: \"https://docs.example.org/mcp\", accessMode: user-controlled, headers: {{ Authorization: \"Bearer ${{TOKEN}}\" }}, userConfig: {{ fields: [{{ name: token, type: secret, headerTemplate: \"Bearer {{value}}\" }}] }}, toolAccess: {{ default: public }} }}\n"
    );
    for variables in [env(&[]), env(&[("TOKEN", "")])] {
        let root = tempfile::tempdir().unwrap();
        write_pack(root.path(), "demo", &text);
        let report = packs::check(root.path(), &variables, None).to_string();
        assert!(report.contains("waits for its first user"), "{report}");
        let pack = load_with(&text, &variables).unwrap();
        assert_eq!(pack.servers[0].for_discovery(), None);
    }
}

/// What a condition says whatever the call is. One that is neither true nor false does not stop a start.
#[test]
fn a_condition_that_cannot_be_meant_is_told_with_its_place() {
    let report = |when: &str| {
        let root = tempfile::tempdir().unwrap();
        let rules = format!(
            "vars: {{ known: [acme], most: 1000, way: chatt }}\n\
             flows: {{ authentication: {{ rolesAttribute: roles }} }}\n\
             mcp:\n  servers:\n    - name: bank\n      transport: streamable-http\n      url: https://bank.example/mcp\n      \
             toolAccess:\n        default: users\n        deny:\n          - {{ tools: [pay], when: '{when}', reason: no }}\n"
        );
        write_pack(root.path(), "demo", &(MINIMAL.to_owned() + &rules));
        packs::check(root.path(), &env(&[]), None)
    };
    for when in [
        "vars.nope > 1",
        "args.amount > vars.most.nope",
        "args.to in vars.known && args.amount > vars[\"nope\"]",
        "args.list.exists(x, x > vars.nope)",
        "origin == \"chatt\"",
        "\"Chat\" != origin",
        "origin in [\"chat\", \"cli\"]",
        "args.amount > 1 && origin == vars.way",
    ] {
        let report = report(when);
        assert!(!report.is_ok() && report.errors() == 1, "{when}: {report}");
        let at = report.problems[0].at.unwrap();
        let line = report.problems[0].excerpt.as_ref().unwrap();
        assert!(
            at.line > 1 && line.text[..at.column - 1].ends_with("when: "),
            "{report}"
        );
        assert!(report.to_string().contains("cannot be meant"), "{report}");
    }
    for when in [
        "\"x\"",
        "null",
        "1",
        "1 / 0 == 1",
        "args.amount + 1",
        "args.amount > 1 || vars.most",
        "roles",
        "size(args.list)",
    ] {
        let report = report(when);
        assert!(report.is_ok() && report.errors() == 1, "{when}: {report}");
    }
    for when in [
        "false",
        "true",
        "1 == 1",
        "vars.most > 1",
        "args.amount > 1 || true",
        "!(\"acme\" in vars.known) && args.amount > 1",
    ] {
        let report = report(when);
        assert_eq!(
            (report.errors(), report.warnings()),
            (0, 1),
            "{when}: {report}"
        );
    }
    for when in [
        "args.amount > vars.most",
        "origin == \"chat\" || origin in [\"mcp\", \"skill\"]",
        "!(args.to in vars.known)",
        "has(args.to) && args.to == \"x\"",
        "args.flag",
        "vars.known.exists(known, known == args.to)",
        "args.list.exists(x, x > vars.most)",
        "has(vars.nope) ? args.a == 1 : args.b == 2",
        "now.getHours(\"UTC\") < 8",
        "double(args.amount) > 10.0",
    ] {
        let report = report(when);
        assert_eq!(
            (report.errors(), report.warnings()),
            (0, 0),
            "{when}: {report}"
        );
    }
}
