//! The stored sign-ins of the person at this terminal, by service: a file that only its owner may read, in the state
//! folder of the user (`$XDG_STATE_HOME/chatelaine`, or `~/.local/state/chatelaine`). Processes of the same person
//! change it one after the other.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{ErrorKind, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

use anyhow::Context as _;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use url::Url;

use domain::{
    clock::Clock,
    config::Environment,
    oauth::{Authorization, TokenService, from_sealable, to_sealable},
    secret::Secret,
    sign_in::SignInToken,
};
use egress::Egress;
use mcp::{
    oauth::{self, OAuthError, OAuthErrorKind, TokenSet},
    tokens::usable_life,
};

/// A sign-in at a service. Serialised only into its owner's file.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct SavedSignIn {
    /// Its `access_token` is the token that the API receives, which may be the provider's ID token.
    authorization: Authorization,
    token: SignInToken,
    /// Absent when the end of the token is not known.
    #[serde(with = "time::serde::timestamp::option")]
    refresh_at: Option<OffsetDateTime>,
}

impl SavedSignIn {
    pub(super) fn new(
        service: TokenService,
        tokens: TokenSet,
        token: SignInToken,
    ) -> anyhow::Result<Self> {
        let tokens = put_api_token(tokens, token).context(
            "the provider gave no ID token, which this service wants; ask whoever runs it",
        )?;
        let refresh_at = refresh_at(&tokens);
        Ok(Self {
            authorization: tokens.into_authorization(service, Vec::new(), None),
            token,
            refresh_at,
        })
    }

    /// The token that the API receives.
    pub(super) fn token(&self) -> Secret {
        self.authorization.access_token.clone()
    }

    pub(super) fn issuer(&self) -> &str {
        &self.authorization.service.issuer
    }

    /// Whether the token must be refreshed now. A valid token that cannot be refreshed is kept.
    pub(super) fn is_due(&self) -> bool {
        let is_late = self.refresh_at.is_some_and(|at| at <= Clock::System.now());
        is_late && (self.authorization.refresh_token.is_some() || !self.is_valid())
    }

    pub(super) fn is_valid(&self) -> bool {
        let end = self.authorization.expires_at;
        end.is_none_or(|end| end > Clock::System.now())
    }

    pub(super) async fn refresh(&mut self, egress: &Egress) -> Result<(), OAuthError> {
        let tokens = oauth::refresh(egress, &self.authorization).await?;
        let service = self.authorization.service.clone();
        let refresh_token = self.authorization.refresh_token.clone();
        let tokens = put_api_token(tokens, self.token).ok_or_else(|| OAuthError {
            kind: OAuthErrorKind::Refused("invalid_grant".to_owned()),
            why: "the provider refreshes no ID token".to_owned(),
        })?;
        self.refresh_at = refresh_at(&tokens);
        self.authorization = tokens.into_authorization(service, Vec::new(), refresh_token);
        Ok(())
    }

    pub(super) async fn revoke(&self, egress: &Egress) -> Result<(), OAuthError> {
        oauth::revoke(egress, &self.authorization).await
    }
}

/// Replaces the access token with the token that the API receives, and takes the end of that token. `None` if the
/// provider gave no such token.
fn put_api_token(mut tokens: TokenSet, token: SignInToken) -> Option<TokenSet> {
    if matches!(token, SignInToken::IdToken) {
        let id_token = tokens.id_token.take()?;
        tokens.expires_at = end_of(&id_token);
        tokens.access_token = id_token;
    }
    Some(tokens)
}

fn refresh_at(tokens: &TokenSet) -> Option<OffsetDateTime> {
    tokens
        .life()
        .map(|life| Clock::System.now() + usable_life(life))
}

/// The end of a JWT by its own claims. The service verifies them.
fn end_of(token: &Secret) -> Option<OffsetDateTime> {
    let claims = token.expose().split('.').nth(1)?;
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
    let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
    OffsetDateTime::from_unix_timestamp(claims["exp"].as_i64()?).ok()
}

/// The file, locked for other processes until this is dropped.
pub(super) struct SignInFile {
    path: PathBuf,
    _lock: File,
}

type SignIns = BTreeMap<String, SavedSignIn>;

impl SignInFile {
    pub(super) async fn open(env: &Environment) -> anyhow::Result<Self> {
        let state = env
            .get("XDG_STATE_HOME")
            .filter(|path| path.starts_with('/'));
        let folder = match (state, std::env::home_dir()) {
            (Some(state), _) => PathBuf::from(state),
            (None, Some(home)) => home.join(".local/state"),
            (None, None) => anyhow::bail!("there is no home folder; set XDG_STATE_HOME"),
        };
        let folder = folder.join("chatelaine");
        let (path, lock) = (folder.join("sign-ins.json"), folder.join("sign-ins.lock"));
        let locked = move || -> std::io::Result<File> {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)?;
            let mut options = OpenOptions::new();
            let file = options.create(true).append(true).mode(0o600).open(lock)?;
            file.lock()?;
            Ok(file)
        };
        let lock = tokio::task::spawn_blocking(locked).await?;
        Ok(Self {
            _lock: lock.with_context(|| format!("cannot keep sign-ins in {}", path.display()))?,
            path,
        })
    }

    pub(super) fn get(&self, service: &Url) -> anyhow::Result<Option<SavedSignIn>> {
        Ok(self.read()?.remove(&name(service)))
    }

    pub(super) fn put(&self, service: &Url, sign_in: &SavedSignIn) -> anyhow::Result<()> {
        let mut all = self.read()?;
        all.insert(name(service), sign_in.clone());
        self.write(&all)
    }

    pub(super) fn remove(&self, service: &Url) -> anyhow::Result<Option<SavedSignIn>> {
        let mut all = self.read()?;
        let removed = all.remove(&name(service));
        if removed.is_some() {
            self.write(&all)?;
        }
        Ok(removed)
    }

    fn read(&self) -> anyhow::Result<SignIns> {
        match fs::read_to_string(&self.path) {
            Ok(text) => from_sealable(&Secret::new(text)).with_context(|| {
                format!(
                    "{} is damaged; delete it and sign in again",
                    self.path.display()
                )
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(SignIns::new()),
            Err(error) => Err(error).with_context(|| self.path.display().to_string()),
        }
    }

    /// Writes a new file and renames it over the old one, so that the file is complete at any time.
    fn write(&self, all: &SignIns) -> anyhow::Result<()> {
        let new = self.path.with_extension("new");
        let _ = fs::remove_file(&new);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(to_sealable(all).expose().as_bytes())?;
        file.sync_all()?;
        Ok(fs::rename(&new, &self.path)?)
    }
}

fn name(service: &Url) -> String {
    service.as_str().trim_end_matches('/').to_owned()
}
