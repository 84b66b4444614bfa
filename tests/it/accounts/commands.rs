//! `chatelaine tenant` and `chatelaine token`, as an operator types them.

use std::path::Path;

use chatelaine::{
    api::values_of,
    app::accounts::Accounts,
    cli::{tenant, token},
};
use clap::Parser;
use domain::{account::IssuerKeys, clock::Clock, config::Environment, principal::Scope};
use egress::Egress;
use time::Duration;

use super::fixture::{Provider, TenantFixture, admit, bearer, headers};

#[derive(Parser)]
enum Typed {
    #[command(subcommand)]
    Tenant(tenant::Command),
    Token(token::Args),
}

/// What a command line prints.
async fn typed(fixture: &TenantFixture, data: &Path, line: &[&str]) -> anyhow::Result<String> {
    let mut out = Vec::new();
    let (db, clock) = (fixture.db(), &fixture.clock);
    match Typed::try_parse_from([&["chatelaine"], line].concat())? {
        Typed::Tenant(command) => tenant::run(command, db, clock, &mut out).await?,
        Typed::Token(args) => token::run(args, db, clock, data, &mut out).await?,
    }
    Ok(String::from_utf8(out).unwrap())
}

async fn refused(fixture: &TenantFixture, line: &[&str]) -> String {
    typed(fixture, Path::new("unused"), line)
        .await
        .expect_err("this must be refused")
        .to_string()
}

#[tokio::test]
async fn a_development_token_lets_its_user_in() {
    let fixture = TenantFixture::new().await;
    let folder = tempfile::tempdir().unwrap();
    let line = [
        "token",
        "--tenant",
        "acme",
        "--user",
        "ada",
        "--role",
        "finance",
        "--role",
        "cfo",
        "--email",
        "ada@example.org",
        "--name",
        "Ada",
        "--locale",
        "es",
        "--hours",
        "2",
    ];
    let token = typed(&fixture, folder.path(), &line).await.unwrap();
    let caller = admit(&fixture.accounts, token.trim_end()).await;
    let principal = &caller.principal;
    assert_eq!(
        (principal.tenant, principal.user.as_str()),
        (fixture.tenant.id, "ada")
    );
    assert_eq!(
        principal.claims["roles"],
        serde_json::json!(["finance", "cfo"])
    );
    assert_eq!(
        (
            principal.display_name().as_str(),
            principal.locale.as_deref()
        ),
        ("Ada", Some("es"))
    );
    assert_eq!(
        principal.claims["iss"],
        "https://dev.chatelaine.invalid/acme"
    );
    assert!(caller.admin().is_err());
    fixture
        .clock
        .advance(Duration::hours(2) + Duration::seconds(31));
    assert!(
        fixture
            .replica()
            .authenticate(&values_of(&bearer(token.trim_end())), None, None)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_development_token_may_be_an_admins() {
    let fixture = TenantFixture::new().await;
    let folder = tempfile::tempdir().unwrap();
    let line = ["token", "--tenant", "acme", "--user", "root", "--admin"];
    let token = typed(&fixture, folder.path(), &line).await.unwrap();
    assert!(
        admit(&fixture.accounts, token.trim_end())
            .await
            .require(Scope::Admin)
            .is_ok()
    );
}

#[tokio::test]
async fn the_development_key_is_made_once_and_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = TenantFixture::new().await;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("not there yet");
    let line = ["token", "--tenant", "acme", "--user", "ada"];
    let first = typed(&fixture, &data, &line).await.unwrap();
    let file = std::fs::read_dir(&data)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect::<Vec<_>>();
    assert_eq!(file.len(), 1, "{file:?}");
    assert_eq!(
        std::fs::metadata(&file[0]).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let key = std::fs::read(&file[0]).unwrap();
    typed(&fixture, &data, &line).await.unwrap();
    assert_eq!(std::fs::read(&file[0]).unwrap(), key);
    admit(&fixture.accounts, first.trim_end()).await;
}

#[tokio::test]
async fn a_new_development_key_replaces_the_lost_one() {
    let fixture = TenantFixture::new().await;
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let line = ["token", "--tenant", "acme", "--user", "ada"];
    let first = typed(&fixture, old.path(), &line).await.unwrap();
    let second = typed(&fixture, new.path(), &line).await.unwrap();
    admit(&fixture.accounts, second.trim_end()).await;
    assert!(
        fixture
            .replica()
            .authenticate(&values_of(&bearer(first.trim_end())), None, None)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_development_token_of_one_tenant_opens_no_other() {
    let fixture = TenantFixture::new().await;
    let folder = tempfile::tempdir().unwrap();
    typed(&fixture, folder.path(), &["tenant", "add", "other"])
        .await
        .unwrap();
    let line = ["token", "--tenant", "other", "--user", "ada"];
    let token = typed(&fixture, folder.path(), &line).await.unwrap();
    let caller = admit(&fixture.accounts, token.trim_end()).await;
    assert_ne!(caller.principal.tenant, fixture.tenant.id);
    let error = typed(
        &fixture,
        folder.path(),
        &["token", "--tenant", "nobody", "--user", "ada"],
    )
    .await
    .unwrap_err();
    assert_eq!(error.to_string(), "tenant \"nobody\" was not found");
}

#[tokio::test]
async fn a_broken_development_key_says_what_to_do() {
    let fixture = TenantFixture::new().await;
    let folder = tempfile::tempdir().unwrap();
    let line = ["token", "--tenant", "acme", "--user", "ada"];
    typed(&fixture, folder.path(), &line).await.unwrap();
    let file = std::fs::read_dir(folder.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    std::fs::write(&file, "nonsense").unwrap();
    let error = typed(&fixture, folder.path(), &line).await.unwrap_err();
    let causes = format!("{error:?}");
    assert!(
        causes.contains("is not our Ed25519 key; remove it to get a new one"),
        "{causes}"
    );
}

#[tokio::test]
async fn tenants_are_added_listed_and_removed() {
    let fixture = TenantFixture::new().await;
    let data = Path::new("unused");
    typed(
        &fixture,
        data,
        &["tenant", "add", "hotel", "--agents", "desk,bar", "--guests"],
    )
    .await
    .unwrap();
    let listed = typed(&fixture, data, &["tenant", "list"]).await.unwrap();
    let lines: Vec<&str> = listed.lines().collect();
    assert!(
        lines[0].ends_with("  acme  every agent")
            && lines[1].ends_with("  hotel  desk, bar, guests"),
        "{listed}"
    );
    assert_eq!(
        refused(&fixture, &["tenant", "add", "hotel"]).await,
        "there is a tenant \"hotel\" already"
    );
    let error = refused(&fixture, &["tenant", "add", "Hotel"]).await;
    assert!(
        error.starts_with("name: \"Hotel\" is no tenant name"),
        "{error}"
    );
    let error = refused(&fixture, &["tenant", "remove", "hotel"]).await;
    assert!(error.ends_with("confirm with --yes"), "{error}");
    typed(&fixture, data, &["tenant", "remove", "hotel", "--yes"])
        .await
        .unwrap();
    assert_eq!(
        refused(&fixture, &["tenant", "remove", "hotel", "--yes"]).await,
        "tenant \"hotel\" was not found"
    );
}

#[tokio::test]
async fn a_registered_client_is_listed_and_forgotten_by_its_issuer() {
    let fixture = TenantFixture::new().await;
    let data = Path::new("unused");
    let issuer = "https://login.example.org";
    sqlx::query(
        "insert into oauth_clients (tenant_id, id, issuer, redirect_uri, sealed)
         values ($2, $2, $1, 'https://chat.example.org/oauth/callback', '')",
    )
    .bind(issuer)
    .bind(fixture.tenant.id.0)
    .execute(&mut fixture.database.as_tenant(fixture.tenant.id).await)
    .await
    .unwrap();
    let listed = typed(&fixture, data, &["tenant", "client", "list", "acme"]);
    assert!(listed.await.unwrap().starts_with(issuer));
    let forget = ["tenant", "client", "forget", "acme", issuer];
    let said = typed(&fixture, data, &forget).await.unwrap();
    assert!(said.starts_with("forgotten"), "{said}");
    let error = refused(&fixture, &forget).await;
    assert!(
        error.starts_with("no client of tenant \"acme\" is registered"),
        "{error}"
    );
}

#[tokio::test]
async fn issuers_are_added_listed_and_removed() {
    let fixture = TenantFixture::new().await;
    let folder = tempfile::tempdir().unwrap();
    let provider = Provider::new("k1");
    let pem = folder.path().join("idp.pem");
    std::fs::write(&pem, provider.public_pem()).unwrap();
    let add = [
        "tenant",
        "issuer",
        "add",
        "acme",
        "--issuer",
        "https://idp.example",
        "--audience",
        "chat",
    ];
    let with = |more: &[&'static str]| [&add[..], more].concat();
    let line = [
        &add[..],
        &[
            "--algorithm",
            "EdDSA",
            "--public-key",
            pem.to_str().unwrap(),
        ],
    ]
    .concat();
    typed(&fixture, folder.path(), &line).await.unwrap();
    admit(&fixture.accounts, &provider.token(serde_json::json!({}))).await;
    let listed = typed(
        &fixture,
        folder.path(),
        &["tenant", "issuer", "list", "acme"],
    )
    .await
    .unwrap();
    assert_eq!(
        listed,
        "https://idp.example  audience chat  EdDSA with a static public key\n"
    );

    typed(
        &fixture,
        folder.path(),
        &with(&["--jwks", "https://idp.example/jwks"]),
    )
    .await
    .unwrap();
    let listed = typed(
        &fixture,
        folder.path(),
        &["tenant", "issuer", "list", "acme"],
    )
    .await
    .unwrap();
    assert_eq!(
        listed,
        "https://idp.example  audience chat  RS256 with https://idp.example/jwks\n"
    );
    assert!(
        refused(&fixture, &add).await.contains("--jwks"),
        "one source of keys is needed"
    );
    let two = with(&["--jwks", "https://idp.example/jwks", "--secret-env", "X"]);
    assert!(
        refused(&fixture, &two)
            .await
            .contains("cannot be used with")
    );

    typed(
        &fixture,
        folder.path(),
        &["tenant", "issuer", "remove", "acme", "https://idp.example"],
    )
    .await
    .unwrap();
    assert_eq!(
        typed(
            &fixture,
            folder.path(),
            &["tenant", "issuer", "list", "acme"]
        )
        .await
        .unwrap(),
        ""
    );
}

#[tokio::test]
async fn keys_are_made_listed_rotated_and_revoked() {
    let fixture = TenantFixture::new().await;
    let data = Path::new("unused");
    let made = typed(
        &fixture,
        data,
        &[
            "tenant",
            "key",
            "create",
            "acme",
            "ci",
            "--claims",
            r#"{"roles":"bot"}"#,
        ],
    );
    let made = made.await.unwrap();
    let key = made.lines().next().unwrap();
    assert_eq!(
        admit(&fixture.accounts, key).await.principal.claims["roles"],
        "bot"
    );
    let rotated = typed(
        &fixture,
        data,
        &[
            "tenant",
            "key",
            "rotate",
            "acme",
            "ci",
            "--overlap-hours",
            "1",
        ],
    )
    .await
    .unwrap();
    admit(&fixture.accounts, rotated.lines().next().unwrap()).await;
    let listed = typed(&fixture, data, &["tenant", "key", "list", "acme"])
        .await
        .unwrap();
    assert_eq!(listed.lines().count(), 2);
    assert!(
        listed
            .lines()
            .all(|line| line.contains("  ci  service  chat  live")),
        "{listed}"
    );
    assert!(!listed.contains(key.rsplit('_').next().unwrap()));
    let revoked = typed(&fixture, data, &["tenant", "key", "revoke", "acme", "ci"])
        .await
        .unwrap();
    assert!(revoked.starts_with("2 revoked"), "{revoked}");
    assert!(
        fixture
            .replica()
            .authenticate(&values_of(&bearer(key)), None, None)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn frontends_keys_take_a_preset_and_single_headers() {
    let fixture = TenantFixture::new().await;
    let data = Path::new("unused");
    let create = |more: &[&'static str]| [&["tenant", "key", "create", "acme"], more].concat();
    let preset = create(&[
        "webui",
        "--frontend",
        "open-webui",
        "--roles-header",
        "X-Groups",
    ]);
    let own = create(&["own", "--user-id-header", "X-Uid"]);
    let who = async |line: &[&str], pairs: &[(&str, &str)]| {
        let made = typed(&fixture, data, line).await.unwrap();
        let mut sent = bearer(made.lines().next().unwrap());
        sent.extend(headers(pairs.iter().copied()));
        fixture
            .accounts
            .authenticate(&values_of(&sent), None, None)
            .await
            .unwrap()
            .principal
    };
    let ann = who(
        &preset,
        &[
            ("X-OpenWebUI-User-Id", "ann"),
            ("X-Groups", "a,b"),
            ("X-OpenWebUI-User-Role", "x"),
        ],
    )
    .await;
    assert_eq!(
        (ann.user.as_str(), ann.claim("roles").as_deref()),
        ("ann", Some("a,b"))
    );
    let bob = who(&own, &[("X-Uid", "bob")]).await;
    assert_eq!(bob.user.as_str(), "frontend:own:bob");
    let shared = create(&[
        "same",
        "--user-id-header",
        "X-Uid",
        "--shares-users-with",
        "webui",
    ]);
    let carl = who(&shared, &[("X-Uid", "carl")]).await;
    assert_eq!(carl.user.as_str(), "carl");
    let said = typed(
        &fixture,
        data,
        &create(&["third", "--frontend", "librechat", "--trust-email"]),
    )
    .await
    .unwrap();
    assert!(said.contains("its users are frontend:third:<id>"), "{said}");
    let listed = typed(&fixture, data, &["tenant", "key", "list", "acme"])
        .await
        .unwrap();
    assert!(
        listed.contains("users frontend:third:<id>, e-mail trusted"),
        "{listed}"
    );
    let error = refused(&fixture, &create(&["half", "--name-header", "X-Name"])).await;
    assert!(error.contains("--user-id-header"), "{error}");
    let error = refused(&fixture, &create(&["bad", "--scope", "root"])).await;
    assert_eq!(
        error,
        "--scope: \"root\" is no scope: use `chat` or `admin`"
    );
    let error = refused(&fixture, &create(&["bad", "--claims", "[]"])).await;
    assert!(error.starts_with("--claims: not a JSON object"), "{error}");
}

#[tokio::test]
async fn a_demo_can_ask_for_tokens_without_a_command_line() {
    let fixture = TenantFixture::new().await;
    let folder = tempfile::tempdir().unwrap();
    let person = chatelaine::app::accounts::development::DevelopmentUser {
        user: "ada".to_owned(),
        ..Default::default()
    };
    let now = Clock::System.now();
    let token = chatelaine::app::accounts::development::token(
        fixture.db(),
        folder.path(),
        &fixture.tenant,
        &person,
        now..now + Duration::days(30),
    );
    let token = token.await.unwrap();
    assert_eq!(format!("{token:?}"), "[secret]");
    let egress = Egress::new(&[]).unwrap();
    let accounts = Accounts::new(
        fixture.db().clone(),
        egress,
        Clock::System,
        Environment::default(),
        32 * 1024,
        "",
    );
    admit(&accounts, token.expose()).await;
    let issuers = chatelaine::app::accounts::list_issuers(fixture.db(), fixture.tenant.id)
        .await
        .unwrap();
    assert!(
        matches!(&issuers[..], [only] if matches!(only.keys, IssuerKeys::PublicKey(_))),
        "{issuers:?}"
    );
}

#[tokio::test]
async fn a_tenant_is_suspended_and_resumed() {
    let (fixture, provider) = TenantFixture::with_provider().await;
    let (folder, token) = (Path::new("unused"), provider.token(serde_json::json!({})));
    admit(&fixture.accounts, &token).await;
    let say = async |line: &[&str]| typed(&fixture, folder, line).await.unwrap();
    let suspended = "tenant acme is suspended; replicas follow within seconds\n";
    assert_eq!(say(&["tenant", "suspend", "acme"]).await, suspended);
    assert_eq!(
        say(&["tenant", "suspend", "acme"]).await,
        suspended.replace(';', " already;")
    );
    assert!(say(&["tenant", "list"]).await.ends_with(", suspended\n"));
    // Nothing told this replica; it looks again within five seconds.
    fixture.clock.advance(Duration::seconds(6));
    for accounts in [&fixture.accounts, &fixture.replica()] {
        let error = accounts
            .authenticate(&values_of(&bearer(&token)), None, None)
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the tenant acme is suspended; ask whoever runs this installation"
        );
    }
    assert!(
        say(&["tenant", "resume", "acme"])
            .await
            .starts_with("tenant acme is active;")
    );
    fixture.clock.advance(Duration::seconds(6));
    admit(&fixture.accounts, &token).await;
    assert!(
        refused(&fixture, &["tenant", "suspend", "nobody"])
            .await
            .contains("\"nobody\"")
    );
}
