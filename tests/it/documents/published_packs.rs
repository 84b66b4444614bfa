//! Agent packs as they are published for the program of the agent pack document: the shapes of their files, written anew.
//! They load unchanged and behave as their authors mean, except where that would be laxer than a pack may be here.

use std::collections::BTreeMap;

use domain::{
    config::Environment,
    ids::{TenantId, UserId},
    menu::{Badge, Visibility},
    pack::Pack,
    principal::{Audience, Principal},
};
use serde_json::{Value, json};

use crate::support::{
    client::{Client, plain},
    model::{calls, error, text},
    notes::Notes,
    packs::{
        MINIMAL, checked, child, env, errors, folder_of, load_files, load_with, server, warnings,
    },
    world::World,
};

/// A pack with every section that they have. Its server belongs to the company.
const TREASURY: &str = r#"
metadata:
  id: treasury
  displayName: Treasury
  description: >-
    Looks after the money of a small company.
  defaultLanguage: en
  tags: [money, mcp]
languages:
  en:
    greetingMessage: "Good day! I keep the books."
    systemPrompt: "You keep the books of a company."
    strings:
      ROOT_TITLE: "The treasury"
      CREDENTIAL: "Show who you are"
      LOGOUT: "Leave"
      LOGOUT_CONFIRMATION: "You have left the treasury."
      WAITING_CREDENTIAL: "Still waiting for you."
      STATS_ERROR: "No numbers today."
  es:
    greetingMessage: "¡Buenos días! Llevo los libros."
    systemPrompt: "Llevas los libros de una empresa."
    strings:
      ROOT_TITLE: "La tesorería"
      CREDENTIAL: "Muestra quién eres"
      LOGOUT: "Marcharse"
      WAITING_CREDENTIAL: "Seguimos esperando."
  pt:
    welcomeMessage: "Bom dia! Eu cuido dos livros."
llm:
  provider: openai
  model: small-model
  temperature: "0.2"
  maxTokens: "1000"
  verbose: "false"
  agentPrompt: "Never guess a number."
rag:
  provider: vectorstore
  docsPath: ./papers
  remoteUrls: ["https://papers.example.org/a.md"]
  vectorStore: { type: redis, indexName: treasury }
memory:
  backend: redis
  window: "20"
  redisUrl: redis://keeper:hunter2@redis:6379
flows:
  welcome: { enabled: "true", sendOnProfile: true, templateKey: welcomeMessage }
  authentication:
    enabled: true
    required: "no"
    credentialDefinitionId: ${CARD_DEFINITION}
    issuerServiceDid: ${CARD_ISSUER}
    userIdentityAttribute: name
    adminUsers: [grace]
    adminAvatars: [ada, "@grace"]
  menu:
    items:
      - { id: authenticate, labelKey: CREDENTIAL, action: authenticate, visibleWhen: unauthenticated }
      - { id: logout, labelKey: LOGOUT, action: logout, visibleWhen: authenticated }
tools:
  dynamicConfig: ${MORE_TOOLS}
  bundled: { statisticsFetcher: { enabled: true, endpoint: "${STATISTICS}", requiresAuth: true } }
mcp:
  servers:
    - name: ledger
      transport: streamable-http
      url: ${LEDGER_URL}
      accessMode: admin-controlled
      reconnect: "true"
      toolAccess: { default: public }
imageGeneration: { providers: [{ name: painter, type: some-model, apiKeyEnv: PAINTER_KEY }] }
speechToText: { requireAuth: true, provider: { name: ears, type: some-model } }
vision: { requireAuth: "true", provider: { name: eyes, type: some-model } }
integrations:
  vsAgent: { adminUrl: "${ADMIN_URL}", stats: { password: hunter2 } }
  postgres: { host: "${DATABASE_HOST}", password: hunter2, dbName: treasury }
"#;

fn treasury(change: impl FnOnce(String) -> String) -> [(&'static str, String); 1] {
    [("agent-pack.yaml", change(TREASURY.to_owned()))]
}

fn as_files<'f>(files: &'f [(&'static str, String)]) -> Vec<(&'f str, &'f str)> {
    files
        .iter()
        .map(|(path, text)| (*path, text.as_str()))
        .collect()
}

fn variables() -> Environment {
    env(&[
        ("LEDGER_URL", "https://ledger.example.org/mcp"),
        ("OPENAI_API_KEY", "s3cret-key"),
    ])
}

fn load_treasury(change: impl FnOnce(String) -> String) -> Pack {
    load_files(&as_files(&treasury(change)), &variables())
}

#[test]
fn a_published_pack_loads_and_each_section_without_effect_is_named_once() {
    let files = treasury(|text| text);
    let report = checked(&as_files(&files), &variables());
    let told = report.to_string();
    assert!(
        !told.contains("hunter2") && !told.contains("s3cret-key"),
        "{told}"
    );
    let warned = warnings(&as_files(&files), &variables());
    insta::assert_snapshot!(warned.join("\n"), @r#"
    metadata.id: the folder has another name, "demo"
    languages.en.strings.WAITING_CREDENTIAL: these texts have no effect here: WAITING_CREDENTIAL, STATS_ERROR
    rag: `rag` has no effect here
    memory.backend: `backend`, `redisUrl` have no effect here
    flows.authentication.credentialDefinitionId: `credentialDefinitionId`, `issuerServiceDid` have no effect here
    flows.authentication.userIdentityAttribute: people choose their "name" themselves, so `sub` is used: `adminUsers` means the ids of users
    flows.authentication.adminAvatars: `adminAvatars` has no effect here
    tools: `tools` has no effect here
    imageGeneration: `imageGeneration` has no effect here
    speechToText: `speechToText` has no effect here
    vision: `vision` has no effect here
    integrations: `integrations` has no effect here
    "#);
    assert_eq!(report.errors(), 0, "{report}");
}

#[test]
fn what_has_no_effect_is_not_read_and_what_is_misspelt_beside_it_is_an_error() {
    let misspelt = treasury(|text| {
        text.replace("redisUrl:", "redisurl:")
            .replace("adminAvatars:", "adminAvatar:")
            .replace("integrations:", "integration:")
            .replace("verbose:", "verbos:")
    });
    insta::assert_snapshot!(errors(&as_files(&misspelt), &variables()).join("\n"), @r#"
    llm.verbos: unknown field "verbos"
    memory.redisurl: unknown field "redisurl"
    flows.authentication.adminAvatar: unknown field "adminAvatar"
    integration: unknown field "integration"
    "#);
    let odd = treasury(|text| {
        text.replace(
            "rag:\n  provider: vectorstore",
            "rag:\n  provider: [1, {a: ~}]",
        )
        .replace(
            "  redisUrl: redis://keeper:hunter2@redis:6379\n",
            "  redisUrl:\n",
        )
    });
    assert_eq!(errors(&as_files(&odd), &variables()), Vec::<String>::new());
}

#[test]
fn fields_work_under_their_older_names_and_in_their_older_forms() {
    let pack = load_treasury(|text| text);
    assert_eq!(
        (pack.llm.temperature, pack.llm.max_tokens),
        (Some(0.2), Some(1000))
    );
    assert_eq!(pack.memory.window, 20);
    assert!(pack.flows.welcome.enabled && !pack.flows.authentication.required);
    assert_eq!(pack.flows.welcome.template_key, "greetingMessage");
    let portuguese = pack.language(Some("pt"));
    assert_eq!(
        portuguese.greeting_message.as_deref(),
        Some("Bom dia! Eu cuido dos livros.")
    );
    assert_eq!(pack.llm.api_key.unwrap().expose(), "s3cret-key");
}

#[test]
fn a_pack_that_does_not_greet_at_the_first_contact_never_greets() {
    let silent = load_treasury(|text| text.replace("sendOnProfile: true", "sendOnProfile: \"0\""));
    assert!(!silent.flows.welcome.enabled);
}

#[test]
fn a_greeting_may_stand_under_a_key_of_its_own() {
    let pack = load_treasury(|text| {
        text.replace("templateKey: welcomeMessage", "templateKey: opening")
            .replace(
                "    systemPrompt: \"You keep",
                "    opening: \"Come in!\"\n    systemPrompt: \"You keep",
            )
    });
    assert_eq!(pack.flows.welcome.template_key, "opening");
    assert_eq!(pack.language(None).strings["opening"], "Come in!");
}

#[test]
fn what_the_program_would_be_laxer_about_stays_strict() {
    let pack = load_treasury(|text| {
        text.replace("    required: \"no\"\n", "")
            .replace("      toolAccess: { default: public }\n", "")
            .replace("    adminUsers: [grace]\n", "")
    });
    let authentication = &pack.flows.authentication;
    assert!(authentication.required);
    assert_eq!(authentication.user_id_attribute, "sub");
    assert_eq!(authentication.default_role, None);
    assert!(authentication.admin_users.is_empty());
    assert!(pack.servers[0].tool_access.is_none());
}

fn person(user: &str, claims: Value) -> Principal {
    let Value::Object(claims) = claims else {
        panic!("claims are an object")
    };
    Principal {
        tenant: TenantId(uuid::Uuid::nil()),
        user: UserId(user.into()),
        claims: std::sync::Arc::new(claims),
        locale: None,
        authenticated: true,
        key: None,
        audience: Audience::default(),
    }
}

#[test]
fn a_name_that_people_choose_makes_nobody_an_admin() {
    let pack = load_treasury(|text| text);
    let is_admin = |pack: &Pack, user: &str, claims| person(user, claims).access(pack).admin;
    assert!(!is_admin(&pack, "u1", json!({ "name": "grace" })));
    assert!(!is_admin(&pack, "u1", json!({ "name": "ada" })));
    assert!(is_admin(&pack, "grace", json!({ "name": "somebody" })));

    let files = treasury(|text| text);
    let marked = variables().with("CHATELAINE_ID_CLAIMS", "name@https://login.example.org");
    let pack = load_files(&as_files(&files), &marked);
    let of_issuer = |issuer: &str| json!({ "name": "grace", "iss": issuer });
    assert!(is_admin(
        &pack,
        "u1",
        of_issuer("https://login.example.org")
    ));
    assert!(!is_admin(
        &pack,
        "u1",
        of_issuer("https://elsewhere.example.org")
    ));
    assert!(!is_admin(
        &pack,
        "grace",
        json!({ "iss": "https://login.example.org" })
    ));
    let told = warnings(&as_files(&files), &marked).join("\n");
    assert!(!told.contains("userIdentityAttribute"), "{told}");
    // The newer name is no way around.
    let pack = load_treasury(|text| {
        text.replace(
            "userIdentityAttribute: name",
            "userIdAttribute: preferred_username",
        )
    });
    assert!(!is_admin(
        &pack,
        "u1",
        json!({ "preferred_username": "grace" })
    ));
}

#[test]
fn guests_come_in_only_where_that_is_written_and_check_says_what_they_reach() {
    let reach = |change: &dyn Fn(String) -> String| {
        let files = treasury(|text| change(text.replace("enabled: true\n", "enabled: false\n")));
        let report = checked(&as_files(&files), &variables());
        assert!(report.is_ok(), "{report}");
        report.problems.iter().find_map(|problem| {
            let reached = problem.message.split_once("and may call: ")?.1;
            (problem.path == "flows.authentication.enabled").then(|| reached.to_owned())
        })
    };
    assert_eq!(reach(&|text| text).as_deref(), Some("ledger every tool"));
    let alone = |text: String| text.replace("    required: \"no\"\n", "");
    assert_eq!(reach(&alone), None);
    let files = treasury(|text| alone(text.replace("enabled: true\n", "enabled: \"false\"\n")));
    let told = warnings(&as_files(&files), &variables()).join("\n");
    assert!(
        told.contains("flows.authentication.enabled: nobody is let in"),
        "{told}"
    );
    for (rules, reached) in [
        ("{ default: admin, public: [a, b] }", "ledger a, b"),
        (
            "{ default: none, roles: { guest: [a], boss: [b] } }",
            "ledger a",
        ),
        (
            "{ default: all, roles: { guest: [a], boss: [b] } }",
            "ledger a, every tool that no role lists",
        ),
        ("{ default: none, roles: { boss: [b] } }", "no tool"),
        ("{ default: public }\n      tools: [c]", "ledger c"),
        ("{ default: public }\n      loadTools: false", "no tool"),
    ] {
        let change = |text: String| text.replace("{ default: public }\n", &format!("{rules}\n"));
        assert_eq!(reach(&change).as_deref(), Some(reached), "{rules}");
    }
}

#[test]
fn the_arguments_of_a_child_may_be_one_text() {
    let arguments = |written: &str| {
        let spec = server(&format!(
            "transport: stdio\ncommand: npx\nargs: {written}\ntoolAccess: {{}}"
        ));
        let (_, args, _) = child(&spec);
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        arguments("\"-y  some-server ${TOKEN}\""),
        ["-y", "some-server", "t0ken"]
    );
    assert_eq!(
        arguments("'[\"-y\", \"a b\", \"${TOKEN}\"]'"),
        ["-y", "a b", "t0ken"]
    );
    let whole = |value: &str| {
        let lines = "transport: stdio\ncommand: npx\nargs: ${ARGS}\ntoolAccess: {}";
        let spec = crate::support::packs::server_with(lines, &env(&[("ARGS", value)]));
        let (_, args, _) = child(&spec);
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(whole("[\"-y\", \"${TOKEN}\"]"), ["-y", "${TOKEN}"]);
    assert_eq!(whole("one argument"), ["one argument"]);
    let quoted = format!(
        "{MINIMAL}mcp: {{ servers: [{{ name: x, transport: stdio, command: npx, args: '-e \"hunter2\"', toolAccess: {{}} }}] }}\n"
    );
    let report = checked(&[("agent-pack.yaml", &quoted)], &env(&[]));
    assert!(
        report.to_string().contains("no shell") && !report.to_string().contains("hunter2"),
        "{report}"
    );
}

#[test]
fn the_menu_takes_the_names_of_published_packs() {
    let pack = load_treasury(|text| {
        text.replace(
            "      - { id: logout,",
            "      - { id: mcp-config, labelKey: MCP_CONFIG_MENU, action: mcp-config, visibleWhen: notConfiguring }\n      \
             - { id: abort, labelKey: MCP_CONFIG_ABORT, label: Stop, action: abort-config, visibleWhen: configuring }\n      \
             - { id: mine, labelKey: MY_APPROVAL_REQUESTS, action: my-approval-requests, visibleWhen: hasApprovalRequests, badge: approvalRequestCount }\n      \
             - { id: theirs, label: Decide, action: pending-approvals, visibleWhen: hasPendingApprovals, badge: pendingApprovalCount }\n      \
             - { id: logout,",
        )
    });
    let items: BTreeMap<_, _> = pack
        .flows
        .menu
        .iter()
        .map(|item| (item.id.as_str(), (item.visible_when, item.badge)))
        .collect();
    assert_eq!(items["mcp-config"].0, Visibility::NotConfiguring);
    assert_eq!(items["abort"].0, Visibility::Configuring);
    assert_eq!(
        items["mine"],
        (
            Visibility::HasApprovalRequests,
            Some(Badge::ApprovalRequests)
        )
    );
    assert_eq!(
        items["theirs"],
        (
            Visibility::HasPendingApprovals,
            Some(Badge::PendingApprovals)
        )
    );
}

#[test]
fn a_text_that_nobody_asks_for_is_said_with_the_nearest_name() {
    let files = treasury(|text| text.replace("LOGOUT_CONFIRMATION:", "LOGOUT_CONFIRMATON:"));
    let report = checked(&as_files(&files), &variables()).to_string();
    assert!(
        report.contains("did you mean \"LOGOUT_CONFIRMATION\"?"),
        "{report}"
    );
    let own = MINIMAL.replace("en: {}", "en: { strings: { MCP_CONFIG_SAVD: Saved } }");
    let report = checked(&[("agent-pack.yaml", &own)], &env(&[])).to_string();
    assert!(
        report.contains("languages.en.strings.MCP_CONFIG_SAVD: has no effect"),
        "{report}"
    );
    assert!(
        report.contains("did you mean \"MCP_CONFIG_SAVED\"?"),
        "{report}"
    );
}

#[test]
fn the_key_and_the_address_of_the_model_may_be_in_the_environment_alone() {
    let llm = |lines: &str, variables: &[(&str, &str)]| {
        let text = MINIMAL.replace("{ provider: none }", lines);
        load_with(&text, &env(variables)).unwrap().llm
    };
    let both = [
        ("OPENAI_API_KEY", "k1"),
        ("OPENAI_BASE_URL", "http://127.0.0.1:9/v1"),
        ("ANTHROPIC_API_KEY", "k2"),
    ];
    let key = |llm: &domain::pack::Llm| llm.api_key.as_ref().map(|key| key.expose().to_owned());
    let of_environment = llm("{ model: m }", &both);
    assert_eq!(
        of_environment.base_url.as_ref().unwrap().as_str(),
        "http://127.0.0.1:9/v1"
    );
    assert_eq!(key(&of_environment).as_deref(), Some("k1"));
    let claude = llm("{ provider: anthropic, model: m }", &both);
    assert_eq!(
        (claude.base_url.clone(), key(&claude).as_deref()),
        (None, Some("k2"))
    );
    // What the pack says counts, also that there is no key.
    assert_eq!(key(&llm("{ model: m, apiKey: \"\" }", &both)), None);
    let elsewhere = llm(
        "{ model: m, baseUrl: \"https://models.example.org/v1\" }",
        &both,
    );
    assert_eq!(key(&elsewhere).as_deref(), Some("k1"));
    let own = llm(
        "{ model: m, baseUrl: \"http://localhost:11434/v1\" }",
        &both,
    );
    assert_eq!(key(&own), None);
    let ollama = llm(
        "{ provider: ollama, model: m }",
        &[("OLLAMA_ENDPOINT", "http://gpu:11434")],
    );
    assert_eq!(ollama.base_url.unwrap().as_str(), "http://gpu:11434/");
    // A new value makes a new version of the pack.
    let version = |key: &str| {
        let text = MINIMAL.replace("{ provider: none }", "{ model: m }");
        load_with(&text, &env(&[("OPENAI_API_KEY", key)]))
            .unwrap()
            .version
    };
    assert_ne!(version("k1"), version("k2"));
}

#[test]
fn a_pack_may_be_a_file_of_json() {
    let pack = json!({ "metadata": { "id": "demo" }, "languages": { "en": {} }, "llm": { "provider": "none" } });
    let files = [("agent-pack.json", pack.to_string())];
    assert_eq!(
        load_files(&as_files(&files), &env(&[])).id().as_str(),
        "demo"
    );
    let both = [
        ("agent-pack.json", pack.to_string()),
        ("agent-pack.yml", MINIMAL.to_owned()),
    ];
    let report = checked(&as_files(&both), &env(&[])).to_string();
    assert!(
        report.contains("there are both agent-pack.yml and agent-pack.json"),
        "{report}"
    );
}

#[test]
fn explain_leaves_out_what_has_no_effect_and_its_secrets() {
    let root = folder_of(&as_files(&treasury(|text| text)));
    let text = packs::explain(root.path(), &variables(), None).unwrap();
    for absent in [
        "hunter2",
        "integrations",
        "redis",
        "credentialDefinitionId",
        "adminAvatars",
        "rag:",
    ] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
    assert!(text.contains("url: ${LEDGER_URL}"), "{text}");
}

/// A published pack of which every user brings a token.
const NOTEBOOK: &str = r#"
metadata: { id: notebook, displayName: Notebook, description: Notes of one's own, defaultLanguage: en }
languages:
  en:
    greetingMessage: "Welcome to your notes."
    systemPrompt: "You keep notes."
    strings:
      ROOT_TITLE: "Notebook"
      MCP_CONFIG_MENU: "Set a server up"
      MCP_CONFIG_ABORT: "Stop setting up"
      MCP_CONFIG_SELECT_SERVER: "Which one shall it be?"
      MCP_CONFIG_SAVED: "Done with {server}."
      MCP_CONFIG_INVALID: "{server} does not take that."
      MCP_CONFIG_ABORTED: "Stopped."
      AUTH_SUCCESS_NAME: "You are in, {name}."
      LOGOUT_CONFIRMATION: "Goodbye."
  es:
    greetingMessage: "Te doy la bienvenida a tus notas."
    systemPrompt: "Guardas notas."
    strings:
      ROOT_TITLE: "Cuaderno"
      MCP_CONFIG_MENU: "Preparar un servidor"
      MCP_CONFIG_ABORT: "Dejar de preparar"
      MCP_CONFIG_SELECT_SERVER: "¿Cuál va a ser?"
      MCP_CONFIG_SAVED: "Listo: {server}."
      MCP_CONFIG_INVALID: "{server} no lo acepta."
      MCP_CONFIG_ABORTED: "Parado."
  pt:
    greetingMessage: "Bem-vindo às suas notas."
llm:
  provider: openai
  model: small-model
  temperature: 0.2
rag: { provider: langchain }
memory: { backend: memory, window: 8, redisUrl: "redis://localhost:6379" }
flows:
  welcome: { enabled: true, sendOnProfile: true, templateKey: greetingMessage }
  authentication: { enabled: true, credentialDefinitionId: "${CARD_DEFINITION}", adminAvatars: [ada] }
  menu:
    items:
      - { id: authenticate, labelKey: CREDENTIAL, action: authenticate, visibleWhen: unauthenticated }
      - { id: logout, labelKey: LOGOUT, action: logout, visibleWhen: authenticated }
      - { id: mcp-config, labelKey: MCP_CONFIG_MENU, action: mcp-config, visibleWhen: notConfiguring }
      - { id: abort-config, labelKey: MCP_CONFIG_ABORT, action: abort-config, visibleWhen: configuring }
mcp:
  servers:
    - name: notes
      transport: streamable-http
      url: ${NOTES_URL}
      accessMode: user-controlled
      userConfig:
        fields:
          - name: token
            type: secret
            label: { en: "Your token of Notes?", es: "¿Tu token de Notas?" }
            headerTemplate: "Bearer {value}"
      toolAccess: { default: public }
integrations: { vsAgent: { adminUrl: "${ADMIN_URL}" } }
"#;

async fn speaker(world: &World, language: &str) -> Client {
    let person = chatelaine::app::accounts::development::DevelopmentUser {
        user: format!("{language}-ann"),
        locale: Some(language.to_owned()),
        ..Default::default()
    };
    world.someone(&person).await
}

async fn labels(client: &Client) -> (Value, Vec<String>) {
    let menu = client.get("/v1/agents/notebook/menu").await.expect(200);
    let items = menu["items"].as_array().unwrap().iter();
    let labels = items
        .map(|item| item["label"].as_str().unwrap().to_owned())
        .collect();
    (menu["title"].clone(), labels)
}

/// What the conversation holds after a message.
async fn said(client: &Client, chat: &str, words: &str) -> String {
    client.say_and_wait(chat, words).await;
    serde_json::to_string(client.messages(chat).await.last().unwrap()).unwrap()
}

#[expect(
    clippy::too_many_lines,
    reason = "one story, told once in each language"
)]
#[tokio::test]
async fn a_published_pack_works_in_its_languages_with_address_token_and_model_from_variables() {
    let notes = Notes::start().await;
    let world = notes
        .world_with(|setup| {
            let address = setup.env.get("MODEL_URL").unwrap().to_owned();
            setup.env = setup
                .env
                .clone()
                .with("OPENAI_BASE_URL", address)
                .with("OPENAI_API_KEY", "model-key-0123456789");
            setup.packs = vec![("notebook".to_owned(), NOTEBOOK.to_owned())];
        })
        .await;
    for (language, words) in [
        (
            "en",
            [
                "Welcome to your notes.",
                "Notebook",
                "Set a server up",
                "Stop setting up",
                "Which one shall it be?",
                "Your token of Notes?",
                "notes does not take that.",
                "Done with notes.",
                "Stopped.",
                "You keep notes.",
            ],
        ),
        (
            "es-MX",
            [
                "Te doy la bienvenida a tus notas.",
                "Cuaderno",
                "Preparar un servidor",
                "Dejar de preparar",
                "¿Cuál va a ser?",
                "¿Tu token de Notas?",
                "notes no lo acepta.",
                "Listo: notes.",
                "Parado.",
                "Guardas notas.",
            ],
        ),
        (
            "pt",
            [
                "Bem-vindo às suas notas.",
                "Notebook",
                "Set a server up",
                "Stop setting up",
                "Which one shall it be?",
                "Your token of Notes?",
                "notes does not take that.",
                "Done with notes.",
                "Stopped.",
                "You keep notes.",
            ],
        ),
    ] {
        let [
            greeting,
            title,
            set_up,
            stop,
            select,
            prompt,
            invalid,
            saved,
            aborted,
            system,
        ] = words;
        let ann = speaker(&world, language).await;
        let (heading, items) = labels(&ann).await;
        assert_eq!(heading, title, "{language}");
        assert!(
            items.contains(&set_up.to_owned()) && !items.contains(&stop.to_owned()),
            "{items:?}"
        );
        let chat = ann.open("notebook").await;
        assert_eq!(plain(&ann.messages(&chat).await[0]), greeting, "{language}");
        let menu = said(&ann, &chat, "/menu").await;
        assert!(menu.contains(title) && menu.contains(set_up), "{menu}");
        let listed = said(&ann, &chat, "/menu mcp-config").await;
        assert!(listed.contains(select), "{listed}");
        let (_, items) = labels(&ann).await;
        assert!(
            items.contains(&stop.to_owned()) && !items.contains(&set_up.to_owned()),
            "{items:?}"
        );
        assert!(
            said(&ann, &chat, "/menu abort-config")
                .await
                .contains(aborted)
        );
        assert!(said(&ann, &chat, "/connect notes").await.contains(prompt));
        let refused = said(&ann, &chat, "a-wrong-token").await;
        assert!(refused.contains(invalid), "{refused}");
        said(&ann, &chat, "/connect notes").await;
        let connected = said(&ann, &chat, "reader-token-1").await;
        assert!(connected.contains(saved), "{connected}");
        world
            .model
            .reply(calls([("notes__whoami", json!({}))]))
            .reply(text("You are reader1."));
        assert!(
            said(&ann, &chat, "Who am I?")
                .await
                .contains("You are reader1.")
        );
        let request = world.model.last_request();
        let prompt = request["messages"][0]["content"].as_str().unwrap();
        assert!(prompt.starts_with(system), "{prompt}");
        assert_eq!(request["model"], "small-model");
        assert!(
            said(&ann, &chat, "/call notes whoami")
                .await
                .contains("reader1")
        );
    }
    let ann = speaker(&world, "en").await;
    let chat = ann.open("notebook").await;
    assert!(
        said(&ann, &chat, "/authenticate")
            .await
            .contains("You are in, en-ann.")
    );
    let key = world.model.requests()[0].headers["authorization"].clone();
    assert_eq!(key, "Bearer model-key-0123456789");
}

#[tokio::test]
async fn a_reasoning_effort_is_sent_in_place_of_a_temperature_until_it_is_refused() {
    const THINKER: &str = "
metadata: { id: thinker }
languages: { en: {} }
llm: { provider: openai, model: deep, baseUrl: \"${MODEL_URL}\", reasoningEffort: medium, temperature: 0.2 }
";
    let world =
        World::with(|setup| setup.packs = vec![("thinker".to_owned(), THINKER.to_owned())]).await;
    world.model.reply(text("Deep."));
    let ann = world.user("ann", &[]).await;
    assert_eq!(ann.ask("thinker", "Think.").await, "Deep.");
    let request = world.model.last_request();
    assert_eq!(request["reasoning_effort"], "medium");
    assert_eq!(request.get("temperature"), None);
    let refusal = error(400, "Unsupported parameter: 'reasoning_effort'");
    world.model.reply(refusal).reply(text("Flat."));
    assert_eq!(ann.ask("thinker", "Think again.").await, "Flat.");
    let request = world.model.last_request();
    assert_eq!(request.get("reasoning_effort"), None);
    assert_eq!(request["temperature"], 0.2);
}

#[test]
fn a_reasoning_effort_that_the_provider_has_no_field_for_is_said() {
    let llm = |lines: &str| MINIMAL.replace("{ provider: none }", lines);
    let told = |text: String| {
        let files = [("agent-pack.yaml", text.as_str())];
        warnings(&files, &env(&[("ANTHROPIC_API_KEY", "k")])).join("\n")
    };
    let claude = told(llm(
        "{ provider: anthropic, model: m, reasoningEffort: high }",
    ));
    assert_eq!(
        claude,
        "llm.reasoningEffort: has no effect with this provider"
    );
    let verbose = told(llm("{ provider: anthropic, model: m, verbose: true }"));
    assert_eq!(verbose, "llm.verbose: has no effect here");
}

#[test]
fn words_that_published_packs_write_in_other_ways_are_understood() {
    let text = format!(
        "{MINIMAL}mcp: {{ servers: [{{ name: a, transport: streamableHttp, url: \"https://a.example.org/mcp\", accessMode: public, reconnect: false, toolAccess: {{ default: public }} }}] }}\n"
    );
    let told = warnings(&[("agent-pack.yaml", &text)], &env(&[]));
    insta::assert_snapshot!(told.join("\n"), @r#"
    mcp.servers[0].transport: counts as `streamable-http`
    mcp.servers[0].accessMode: counts as `admin-controlled`
    mcp.servers[0].reconnect: has no effect here
    "#);
}
