//! The checks of a new issuer: its names, its algorithm, and keys that fit.

use jsonwebtoken::{Algorithm, AlgorithmFamily};
use url::Url;

use super::super::tokens;
use crate::domain::{
    account::{Issuer, IssuerKeys},
    error::{Error, Result},
};

pub(super) fn check(issuer: &Issuer) -> Result<()> {
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
