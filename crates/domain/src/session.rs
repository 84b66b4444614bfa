//! A session that ends before its token does, because its user signed out. Tokens stay valid until they
//! expire, so the program remembers which tokens of a user it no longer accepts.

use serde_json::{Map, Value};
use time::OffsetDateTime;

use super::principal::Principal;

/// How many seconds an issuer's clock may be ahead of ours. A token that says it was issued later is refused, so that an
/// admin's sign-out ends every token that was accepted before.
pub const AHEAD: i64 = 60;
const A_DAY: i64 = 24 * 60 * 60;

/// What somebody did earlier, of which is asked whether it still counts.
#[derive(Clone, Copy, Debug)]
pub struct PastAct<'a> {
    /// Who did it, in the session in which they did.
    pub who: &'a Principal,
    /// By the clock of the database.
    pub at: OffsetDateTime,
    pub kind: ActKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActKind {
    /// A request ends with its session, whoever ended that.
    Request,
    /// A vote is over when its voter is gone. A voter who signs out has said what they wanted to say.
    Vote,
}

/// Why what somebody did earlier is not theirs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum SessionEnd {
    SignedOut,
    KeyRevoked,
    IssuerRemoved,
    Blocked,
    /// Nothing is known of them any more.
    Deleted,
    /// The database is a backup: nobody knows what came of it after that.
    Restored,
}

impl SessionEnd {
    /// Of a request of theirs that waits.
    pub fn reason(self) -> &'static str {
        match self {
            Self::SignedOut => "its requester was signed out",
            Self::KeyRevoked => "the API key that its requester came with was revoked",
            Self::IssuerRemoved => "the issuer of its requester's token is not trusted any more",
            Self::Blocked => "its requester was blocked",
            Self::Deleted => "its requester was deleted",
            Self::Restored => {
                "the database was restored to an earlier time, and the call may have been made after that; look whether \
                 it was before you ask for it again"
            }
        }
    }

    /// Of somebody who would decide now.
    pub fn refusal(self) -> &'static str {
        match self {
            Self::SignedOut | Self::Deleted | Self::Restored => {
                "you were signed out; sign in again"
            }
            Self::KeyRevoked => "the API key that you came with was revoked",
            Self::IssuerRemoved => "the issuer of your token is not trusted any more",
            Self::Blocked => "you were blocked",
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
    /// When somebody else than the user ended their sessions last.
    pub others_at: Option<OffsetDateTime>,
    /// No credential of theirs is taken, whenever it was issued.
    pub is_blocked: bool,
}

impl SignOut {
    /// The tokens that end when a user with these claims signs out now. `None` when the claims come from no
    /// token: a frontend's key speaks for its user as long as the frontend does.
    pub fn from_claims(claims: &Map<String, Value>, now: i64) -> Option<Self> {
        let expires_until = seconds(claims, "exp")?;
        // The issuer's clock may be ahead of ours.
        let issued_until = seconds(claims, "iat").map_or(now, |issued| issued.max(now));
        Some(Self {
            issued_until,
            expires_until,
            others_at: None,
            is_blocked: false,
        })
    }

    /// The tokens that end when somebody else signs a user out: all that were issued until now, by an issuer whose
    /// clock may be ahead, and those without a time of issue that end within a day.
    pub fn of_all(now: OffsetDateTime) -> Self {
        let seconds = now.unix_timestamp();
        Self {
            issued_until: seconds + AHEAD,
            expires_until: seconds + A_DAY,
            others_at: Some(now),
            is_blocked: false,
        }
    }

    /// Whether something that was done at a time with a token of these claims, or with a key, is over.
    pub fn ends_act(self, act: &PastAct<'_>) -> bool {
        let by_token = act.who.issuer().is_some();
        let by_others = self
            .others_at
            .is_some_and(|at| at > act.at || by_token && Self::of_all(at).ends(&act.who.claims));
        let by_anybody = act.kind == ActKind::Request && by_token && self.ends(&act.who.claims);
        by_others || by_anybody
    }

    /// Whether a token with these claims is over.
    pub fn ends(self, claims: &Map<String, Value>) -> bool {
        if self.is_blocked {
            return true;
        }
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
