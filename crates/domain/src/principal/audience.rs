//! What a credential was made for. An MCP client gets a token for the endpoint of one agent, and the token must open
//! nothing else (RFC 8707, RFC 9068): an editor and its model hold it, and no editor may approve payments.

use std::collections::BTreeSet;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::error::{Error, Result};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Audience {
    /// The service: the whole API, and the MCP endpoint of each agent.
    #[default]
    Service,
    /// The MCP endpoints of these agents, and nothing else.
    Endpoints(BTreeSet<String>),
}

impl Audience {
    /// The narrowest of the audiences that a token names. An audience whose path is `…/mcp/{agent}` is that endpoint, on
    /// whatever host and behind whatever prefix: a proxy may know the service under another address.
    pub fn narrowest<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let agents: BTreeSet<String> = names.into_iter().filter_map(agent_of).collect();
        if agents.is_empty() {
            Self::Service
        } else {
            Self::Endpoints(agents)
        }
    }

    pub fn is_service(&self) -> bool {
        *self == Self::Service
    }

    /// Whether the credential counts at the MCP endpoint of this agent.
    pub fn includes(&self, agent: &str) -> bool {
        match self {
            Self::Service => true,
            Self::Endpoints(agents) => agents.contains(agent),
        }
    }

    /// Refuses the credential at an entry point that it was not made for: the MCP endpoint of an agent, or, without one,
    /// everything else.
    pub fn require(&self, endpoint: Option<&str>) -> Result<()> {
        match self {
            Self::Endpoints(agents) if endpoint.is_none_or(|agent| !self.includes(agent)) => {
                let made_for: Vec<_> = agents.iter().map(|agent| format!("/mcp/{agent}")).collect();
                Err(Error::Unauthenticated(format!(
                    "this token was made for {} and counts nowhere else; ask its issuer for a token for this service",
                    made_for.join(" and ")
                )))
            }
            _ => Ok(()),
        }
    }
}

/// The agent whose MCP endpoint an audience names, if it names one. However the address is spelled, it is read as a
/// server would read it; where in doubt it is an endpoint, because that is the narrower reading.
fn agent_of(audience: &str) -> Option<String> {
    let parsed = Url::parse(audience);
    let path = parsed.as_ref().map_or_else(
        |_| audience.split(['?', '#']).next(),
        |url| Some(url.path()),
    )?;
    let path = percent_decode_str(path).decode_utf8_lossy();
    let mut segments = path.rsplit('/').filter(|segment| !segment.is_empty());
    let (agent, parent) = (segments.next()?, segments.next()?);
    parent.eq_ignore_ascii_case("mcp").then(|| agent.to_owned())
}
