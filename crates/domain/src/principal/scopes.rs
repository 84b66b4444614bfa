//! The scopes of a token or a key: what its holder may do.

/// What a credential may be used for. A credential without any scope opens nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes {
    chat: bool,
    pub(super) admin: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Scope {
    /// Talk to agents.
    Chat,
    /// Manage the tenant.
    Admin,
}

impl Scopes {
    pub fn new(scopes: impl IntoIterator<Item = Scope>) -> Self {
        scopes
            .into_iter()
            .fold(Self::default(), |held, scope| match scope {
                Scope::Chat => Self { chat: true, ..held },
                Scope::Admin => Self {
                    admin: true,
                    ..held
                },
            })
    }

    /// From their names; the error says which name is none.
    pub fn parse<S: AsRef<str>>(names: &[S]) -> Result<Self, String> {
        let parsed = names.iter().map(AsRef::as_ref).map(|name| {
            name.parse()
                .map_err(|_| format!("{name:?} is no scope: use `chat` or `admin`"))
        });
        parsed.collect::<Result<Vec<_>, _>>().map(Self::new)
    }

    pub fn has(self, scope: Scope) -> bool {
        match scope {
            Scope::Chat => self.chat,
            Scope::Admin => self.admin,
        }
    }

    pub fn names(self) -> Vec<&'static str> {
        [Scope::Chat, Scope::Admin]
            .into_iter()
            .filter(|scope| self.has(*scope))
            .map(<&str>::from)
            .collect()
    }
}
