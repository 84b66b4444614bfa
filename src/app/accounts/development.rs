//! Tokens for development and the demo: an issuer of each tenant whose key lies in the data folder.
//!
//! Its name ends in `.invalid`, so it can never be the name of a real issuer. A tenant trusts the issuer
//! only after a person with access to the database has asked for a token.

use std::{
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use super::{add_issuer, list_issuers};
use domain::{
    account::{Issuer, IssuerKeys, SourceSettings, Tenant, UserSource},
    error::{Error, Result},
    ids::IssuerId,
    secret::Secret,
};
use store::Db;

/// `aud` of every development token.
pub const AUDIENCE: &str = "chatelaine";
const KEY_FILE: &str = "development-key.pem";
/// DER of an Ed25519 key up to the key itself: PKCS#8 (RFC 8410) and `SubjectPublicKeyInfo`.
const PRIVATE_DER: [u8; 16] = [
    0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
];
const PUBLIC_DER: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// The user that a development token is for.
#[derive(Clone, Debug, Default)]
pub struct DevelopmentUser {
    pub user: String,
    pub name: Option<String>,
    pub email: Option<String>,
    pub locale: Option<String>,
    pub roles: Vec<String>,
    /// Gives the right to manage the tenant.
    pub admin: bool,
}

/// Signs a token for a person of a tenant, valid for a time, and makes the tenant trust the key that signs.
pub async fn token(
    db: &Db,
    data: &Path,
    tenant: &Tenant,
    person: &DevelopmentUser,
    valid: Range<OffsetDateTime>,
) -> Result<Secret> {
    let key = Key::in_folder(data).map_err(Error::Internal)?;
    let issuer = issuer_of(tenant, &key);
    let known = list_issuers(db, tenant.id).await?;
    if !known
        .iter()
        .any(|known| known.issuer == issuer.issuer && known.keys == issuer.keys)
    {
        add_issuer(db, issuer.clone(), &SourceSettings::default()).await?;
    }
    let claims = claims(&issuer, person, valid.start, valid.end);
    let text =
        encode(&Header::new(Algorithm::EdDSA), &claims, &key.signing).map_err(Error::internal)?;
    Ok(Secret::new(text))
}

fn issuer_of(tenant: &Tenant, key: &Key) -> Issuer {
    Issuer {
        id: IssuerId::new(),
        tenant: tenant.id,
        issuer: format!("https://dev.chatelaine.invalid/{}", tenant.name),
        audience: AUDIENCE.to_owned(),
        algorithm: "EdDSA".to_owned(),
        keys: IssuerKeys::PublicKey(key.public_pem.clone()),
        source: UserSource::default(),
        of_tenant: None,
    }
}

fn claims(
    issuer: &Issuer,
    person: &DevelopmentUser,
    now: OffsetDateTime,
    expiry: OffsetDateTime,
) -> Map<String, Value> {
    let required = json!({
        "iss": issuer.issuer,
        "aud": issuer.audience,
        "sub": person.user,
        "iat": now.unix_timestamp(),
        "exp": expiry.unix_timestamp(),
    });
    let Value::Object(mut claims) = required else {
        unreachable!("an object was written")
    };
    let described = [
        ("name", &person.name),
        ("email", &person.email),
        ("locale", &person.locale),
    ];
    let described = described
        .into_iter()
        .filter_map(|(claim, text)| Some((claim.to_owned(), text.clone()?.into())));
    claims.extend(described);
    if person.email.is_some() {
        claims.insert("email_verified".to_owned(), true.into());
    }
    if !person.roles.is_empty() {
        claims.insert("roles".to_owned(), person.roles.clone().into());
    }
    if person.admin {
        claims.insert("scope".to_owned(), "chatelaine:admin".into());
    }
    claims
}

/// An Ed25519 key pair.
struct Key {
    signing: EncodingKey,
    public_pem: String,
}

impl Key {
    /// The key of a data folder, made when there is none.
    fn in_folder(data: &Path) -> anyhow::Result<Self> {
        let path = data.join(KEY_FILE);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(data, &path)?,
            read => read.with_context(|| format!("{} cannot be read", path.display()))?,
        };
        Self::from_pem(&text).with_context(|| {
            format!(
                "{} is not our Ed25519 key; remove it to get a new one",
                path.display()
            )
        })
    }

    fn from_pem(text: &str) -> anyhow::Result<Self> {
        let body: String = text
            .lines()
            .filter(|line| !line.starts_with("-----"))
            .collect();
        let der = STANDARD.decode(body.trim())?;
        if der.len() != PRIVATE_DER.len() + 32 || !der.starts_with(&PRIVATE_DER) {
            bail!("it has another format");
        }
        let signing = EncodingKey::from_ed_der(&der);
        let jwk::AlgorithmParameters::OctetKeyPair(public) =
            jwk::Jwk::from_encoding_key(&signing, Algorithm::EdDSA)?.algorithm
        else {
            bail!("it has no public key");
        };
        let public = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(public.x)?;
        Ok(Self {
            signing,
            public_pem: pem("PUBLIC KEY", &[&PUBLIC_DER[..], &public].concat()),
        })
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        STANDARD.encode(der)
    )
}

/// Writes a new key that only its owner may read. When two processes write at once, both use the key of the
/// first one.
fn create(data: &Path, path: &Path) -> anyhow::Result<String> {
    fs::create_dir_all(data).with_context(|| format!("{} cannot be made", data.display()))?;
    let text = pem(
        "PRIVATE KEY",
        &[&PRIVATE_DER[..], &rand::random::<[u8; 32]>()].concat(),
    );
    let draft = PathBuf::from(format!("{}.{}", path.display(), uuid::Uuid::now_v7()));
    write_private(&draft, &text)
        .with_context(|| format!("{} cannot be written", draft.display()))?;
    // A link appears at once and whole, and never replaces a key that is there.
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(fs::read_to_string(path)?),
    }
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    io::Write::write_all(&mut options.open(path)?, text.as_bytes())
}
