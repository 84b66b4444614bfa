//! Issuers, as the operator and the admins of a tenant manage them. An issuer whose tokens could not be verified is
//! refused when it is added.

use std::collections::BTreeMap;

use jsonwebtoken::{Algorithm, AlgorithmFamily};
use url::Url;

use crate::app::accounts::{
    Accounts,
    key_sets::{self, KeySource},
    tokens,
};
use domain::{
    account::{Issuer, IssuerKeys, SourceName, SourceSettings, UserSource},
    audit::{Fact, OPERATOR},
    config::Environment,
    error::{Error, ErrorCode, Result},
    finding::{Code, Finding},
    ids::{IssuerId, TenantId},
    principal::{Admin, Audience, Operator},
};
use egress::{Egress, parse_url};
use store::{Db, Tx};

/// The most issuers that a tenant may trust.
const MAX_ISSUERS: usize = 50;
/// The most bytes of an address or a public key.
const MAX_KEYS: usize = 8 * 1024;

/// How many issuers [`examine`] looks at.
const EXAMINED: i64 = 200;

/// What is wrong with the issuers of all tenants: key sets that cannot be fetched, variables that are not set or too
/// short, and audiences whose tokens count at one MCP endpoint alone. Changes nothing.
pub async fn examine(db: &Db, egress: &Egress, env: &Environment) -> Result<Vec<Finding>> {
    let mut tx = db.system().await?;
    let issuers = store::issuers::list_first(&mut tx, EXAMINED).await?;
    drop(tx);
    let mut sources = BTreeMap::new();
    let mut findings = Vec::new();
    for issuer in issuers {
        if !Audience::narrowest([issuer.audience.as_str()]).is_service() {
            findings.push(Finding::new(
                Code::IssuerEndpoint,
                format!(
                    "tokens of issuer {:?} for {:?} count at this MCP endpoint alone; a client that used them elsewhere \
                     is refused",
                    issuer.issuer, issuer.audience
                ),
                "let clients of the API ask for the audience of the frontends; where this issuer is trusted for that one, \
                 too, tokens for endpoints of this service need no entry, and this one can be removed",
            ));
        }
        match issuer.keys {
            IssuerKeys::Jwks(url) => {
                let of_tenant = issuer.of_tenant;
                sources.insert(issuer.issuer, KeySource { url, of_tenant });
            }
            IssuerKeys::SecretEnv(name) => {
                if let Err(state) = tokens::read_secret(env, &name) {
                    findings.push(Finding::new(
                        Code::IssuerSecret,
                        format!("{name}, the secret of issuer {:?}, {state}", issuer.issuer),
                        "set it to the secret that the issuer signs with",
                    ));
                }
            }
            IssuerKeys::PublicKey(_) => {}
        }
    }
    let asked = sources.iter().map(async |(issuer, source)| {
        let why = key_sets::probe(egress, source).await.err()?;
        Some(Finding::new(
            Code::IssuerUnreachable,
            format!("the keys of issuer {issuer:?} cannot be fetched: {why}"),
            "correct the address of its key set, or let this machine reach it; until then its tokens are refused",
        ))
    });
    let asked = futures_util::future::join_all(asked).await;
    findings.extend(asked.into_iter().flatten());
    Ok(findings)
}

impl Accounts {
    /// Trusts an issuer for the admin's tenant, or replaces the keys of a trusted one. Returns its row and whether it
    /// is new. Only the operator may name a variable of the environment, add an issuer that is new to the
    /// installation, or add one that also vouches for another tenant (an admin could otherwise have that tenant's
    /// tokens refused).
    pub async fn trust(
        &self,
        admin: &Admin,
        mut issuer: Issuer,
        settings: &SourceSettings,
    ) -> Result<(Issuer, bool)> {
        issuer.tenant = admin.tenant();
        issuer.of_tenant = Some(!admin.is_operator());
        self.check_reach(admin, &issuer.keys)?;
        check_issuer(&issuer)?;
        let mut tx = self.shared.db.system_then_tenant().await?;
        let same = store::issuers::list_by_issuer(&mut tx, &issuer.issuer).await?;
        if !admin.is_operator() && !same.iter().all(|other| other.tenant == issuer.tenant) {
            let why = "vouches for users of another tenant, too; ask whoever runs this installation to add it";
            return Err(Error::conflict(
                ErrorCode::IssuerNotAllowed,
                format!("issuer {:?} {why}", issuer.issuer),
            ));
        }
        // The first tenant to add an issuer could otherwise receive the users of another one.
        if !admin.is_operator() && same.is_empty() {
            let why = "is new to this installation; ask whoever runs the installation to add it";
            return Err(Error::conflict(
                ErrorCode::IssuerNotAllowed,
                format!("issuer {:?} {why}", issuer.issuer),
            ));
        }
        tx.enter(issuer.tenant).await?;
        let known = store::issuers::list(&mut tx, issuer.tenant).await?;
        let is_same =
            |other: &Issuer| other.issuer == issuer.issuer && other.audience == issuer.audience;
        if known.len() >= MAX_ISSUERS && !known.iter().any(is_same) {
            return Err(Error::conflict(
                ErrorCode::LimitReached,
                format!("there are {MAX_ISSUERS} issuers; remove one first"),
            ));
        }
        let new = put(tx, admin, &mut issuer, settings).await?;
        // The next token is checked by the new rows; other replicas follow within seconds.
        self.shared.issuer_changed(&issuer.issuer).await;
        Ok((issuer, new))
    }

    /// The issuers of the admin's tenant.
    pub async fn issuers(&self, admin: &Admin) -> Result<Vec<Issuer>> {
        list_issuers(&self.shared.db, admin.tenant()).await
    }

    /// The issuers that vouch for users of a tenant.
    pub async fn issuers_of(&self, tenant: TenantId) -> Result<Vec<Issuer>> {
        list_issuers(&self.shared.db, tenant).await
    }

    /// Stops trusting an issuer of the admin's tenant. Its tokens and its users' event streams stop within seconds.
    /// Only the operator may remove the last issuer, since nobody could sign in without it.
    pub async fn distrust(&self, admin: &Admin, id: IssuerId) -> Result<()> {
        let tenant = admin.tenant();
        let mut tx = self.shared.db.tenant(tenant).await?;
        let known = store::issuers::list(&mut tx, tenant).await?;
        if !admin.is_operator() && known.len() == 1 && known[0].id == id {
            let why = "this is the only issuer, and nobody could sign in without it; add another first, or ask whoever \
                       runs this installation to remove it";
            return Err(Error::conflict(ErrorCode::LastIssuer, why));
        }
        let removed = store::issuers::take(&mut tx, tenant, id).await?;
        let (issuer, audience) = removed.ok_or_else(|| Error::not_found(format!("issuer {id}")))?;
        let detail = format!("{issuer} for {audience}");
        let fact = Fact::new(admin.user().as_str(), "issuer.removed").detail(&detail);
        store::audit::record(&mut tx, tenant, &fact).await?;
        tx.commit().await?;
        self.shared.issuer_changed(&issuer).await;
        Ok(())
    }

    /// Checks that an issuer added over the API may have its keys from this source.
    fn check_reach(&self, admin: &Admin, keys: &IssuerKeys) -> Result<()> {
        match keys {
            IssuerKeys::Jwks(url) if url.len() > MAX_KEYS => {
                Err(Error::unfit(ErrorCode::TooLong, "jwks_url", "is too long"))
            }
            IssuerKeys::Jwks(url) => {
                let of_tenant = Some(!admin.is_operator());
                let check = |url: Url| self.shared.key_sets.check_url(&url, of_tenant);
                let checked = parse_url(url).and_then(check);
                checked.map_err(|refused| Error::invalid("jwks_url", refused.to_string()))
            }
            IssuerKeys::PublicKey(pem) if pem.len() > MAX_KEYS => Err(Error::unfit(
                ErrorCode::TooLong,
                "public_key",
                "is too long",
            )),
            IssuerKeys::SecretEnv(_) if !admin.is_operator() => {
                let why =
                    "only whoever runs this installation may name a variable of its environment";
                Err(Error::invalid("secret_env", why))
            }
            IssuerKeys::PublicKey(_) | IssuerKeys::SecretEnv(_) => Ok(()),
        }
    }
}

/// Adds an issuer of a tenant as the operator, or replaces the one with the same issuer and audience. Returns how its
/// users are named.
pub async fn add_issuer(
    db: &Db,
    mut issuer: Issuer,
    settings: &SourceSettings,
) -> Result<UserSource> {
    check_issuer(&issuer)?;
    issuer.of_tenant = Some(false);
    let admin = Operator::at_the_database().admin_of(issuer.tenant);
    let tx = db.tenant(issuer.tenant).await?;
    put(tx, &admin, &mut issuer, settings).await?;
    Ok(issuer.source)
}

/// Writes an issuer that was checked and returns whether it is new. A replaced one keeps its id.
async fn put(
    mut tx: Tx,
    admin: &Admin,
    issuer: &mut Issuer,
    settings: &SourceSettings,
) -> Result<bool> {
    let name = SourceName::Issuer(&issuer.issuer);
    issuer.source = store::user_sources::put(&mut tx, name, settings).await?;
    let new = store::issuers::put(&mut tx, issuer).await?;
    let detail = format!(
        "{} for {}, {}{}",
        issuer.issuer, issuer.audience, issuer.algorithm, issuer.source
    );
    let fact = Fact::new(admin.user().as_str(), "issuer.stored").detail(&detail);
    store::audit::record(&mut tx, issuer.tenant, &fact).await?;
    tx.commit().await?;
    Ok(new)
}

pub async fn list_issuers(db: &Db, tenant: TenantId) -> Result<Vec<Issuer>> {
    let mut tx = db.tenant(tenant).await?;
    store::issuers::list(&mut tx, tenant).await
}

/// Removes an issuer, with one audience or with all. Its tokens stop within seconds.
pub async fn remove_issuer(
    db: &Db,
    tenant: TenantId,
    issuer: &str,
    audience: Option<&str>,
) -> Result<()> {
    let mut tx = db.tenant(tenant).await?;
    if store::issuers::delete(&mut tx, tenant, issuer, audience).await? == 0 {
        return Err(Error::not_found(format!("issuer {issuer:?}")));
    }
    let detail = audience.map_or_else(
        || issuer.to_owned(),
        |audience| format!("{issuer} for {audience}"),
    );
    store::audit::record(
        &mut tx,
        tenant,
        &Fact::new(OPERATOR, "issuer.removed").detail(&detail),
    )
    .await?;
    tx.commit().await
}

fn check_issuer(issuer: &Issuer) -> Result<()> {
    for (field, text) in [("issuer", &issuer.issuer), ("audience", &issuer.audience)] {
        if text.is_empty() || text.len() > 500 || text.chars().any(char::is_control) {
            return Err(Error::invalid(
                field,
                "must be 1 to 500 bytes without control characters",
            ));
        }
    }
    let algorithm = tokens::algorithm(&issuer.algorithm).ok_or_else(|| {
        let known =
            "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA, or HS256 with a secret";
        Error::invalid(
            "algorithm",
            format!("{:?} is not one of {known}", issuer.algorithm),
        )
    })?;
    let symmetric = algorithm.family() == AlgorithmFamily::Hmac;
    match &issuer.keys {
        IssuerKeys::SecretEnv(name) if symmetric => check_variable(name),
        IssuerKeys::SecretEnv(_) => Err(Error::invalid(
            "algorithm",
            "a secret in an environment variable goes with HS256, HS384 or HS512",
        )),
        _ if symmetric => Err(Error::invalid(
            "algorithm",
            format!("{algorithm:?} needs a secret in an environment variable"),
        )),
        IssuerKeys::Jwks(url) => match Url::parse(url) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(()),
            _ => Err(Error::invalid(
                "jwks_url",
                format!("{url:?} is not an http or https URL"),
            )),
        },
        IssuerKeys::PublicKey(pem) => check_public_key(pem, algorithm),
    }
}

fn check_variable(name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.is_empty() && name.chars().all(fits) && !name.starts_with(|c: char| c.is_ascii_digit())
    {
        return Ok(());
    }
    // The value may be the secret itself, so the message must not repeat it.
    Err(Error::invalid(
        "secret_env",
        "give the name of an environment variable, not the secret",
    ))
}

fn check_public_key(pem: &str, algorithm: Algorithm) -> Result<()> {
    if pem.contains("PRIVATE KEY") {
        return Err(Error::invalid(
            "public_key",
            "this is a private key; keep it where it signs and give its public key",
        ));
    }
    let wanted = || {
        Error::invalid(
            "public_key",
            format!("not a public key in PEM that fits {algorithm:?}"),
        )
    };
    tokens::public_key(pem, algorithm)
        .map(drop)
        .map_err(|_| wanted())
}
