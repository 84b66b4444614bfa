//! A session that ends before its token does, because its user signed out. Tokens stay valid until they
//! expire, so the program remembers which tokens of a user it no longer accepts.

use serde_json::{Map, Value};

/// How far an issuer's clock may be ahead of ours.
const AHEAD: i64 = 30;
const A_DAY: i64 = 24 * 60 * 60;

/// Why what somebody asked for earlier is not theirs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    SignedOut,
    KeyRevoked,
    IssuerRemoved,
}

impl SessionEnd {
    /// As a row says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SignedOut => "signed_out",
            Self::KeyRevoked => "key_revoked",
            Self::IssuerRemoved => "issuer_removed",
        }
    }

    /// Back from [`SessionEnd::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        [Self::SignedOut, Self::KeyRevoked, Self::IssuerRemoved]
            .into_iter()
            .find(|end| end.as_str() == text)
    }

    /// Of a request of theirs that waits.
    pub fn reason(self) -> &'static str {
        match self {
            Self::SignedOut => "its requester was signed out",
            Self::KeyRevoked => "the API key that its requester came with was revoked",
            Self::IssuerRemoved => "the issuer of its requester's token is not trusted any more",
        }
    }
}

/// Which tokens of a user are over. Seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignOut {
    /// Tokens that were issued until then (`iat`).
    pub issued_until: i64,
    /// Tokens that do not say when they were issued, if they end until then (`exp`).
    pub expires_until: i64,
}

impl SignOut {
    /// The tokens that end when a user with these claims signs out now. `None` when the claims come from no
    /// token: a frontend's key speaks for its user as long as the frontend does.
    pub fn of(claims: &Map<String, Value>, now: i64) -> Option<Self> {
        let expires_until = seconds(claims, "exp")?;
        // The issuer's clock may be ahead of ours.
        let issued_until = seconds(claims, "iat").map_or(now, |issued| issued.max(now));
        Some(Self {
            issued_until,
            expires_until,
        })
    }

    /// The tokens that end when an admin signs a user out: all that were issued until now, by an issuer whose
    /// clock may be ahead, and those without a time of issue that end within a day.
    pub fn of_all(now: i64) -> Self {
        Self {
            issued_until: now + AHEAD,
            expires_until: now + A_DAY,
        }
    }

    /// Whether a token with these claims is over.
    pub fn ends(self, claims: &Map<String, Value>) -> bool {
        match seconds(claims, "iat") {
            Some(issued) => issued <= self.issued_until,
            None => seconds(claims, "exp").is_none_or(|end| end <= self.expires_until),
        }
    }
}

fn seconds(claims: &Map<String, Value>, name: &str) -> Option<i64> {
    let claim = claims.get(name)?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a cast saturates, and times are far from the ends"
    )]
    claim
        .as_i64()
        .or_else(|| claim.as_f64().map(|seconds| seconds as i64))
}
