//! What `chatelaine doctor` finds. Each finding has a code, which `docs/doctor.md` explains.

use std::fmt;

use serde::Serialize;

/// Something of an installation that is wrong. No text of it holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub code: Code,
    pub severity: Severity,
    /// What is wrong, in the words in which the start would refuse it.
    pub message: String,
    /// What to do; empty where the message says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The service does not start, or something that the settings or packs ask for does not work.
    Error,
    /// The service works, but probably not as its operator intends.
    Warning,
}

/// Declares every code once: `Name = "text": Severity;`.
macro_rules! codes {
    ($($name:ident = $text:literal: $severity:ident;)*) => {
        /// The kind of a finding. Documents, and programs that read the output, name it; a code never changes its meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum Code {
            $(#[serde(rename = $text)] $name,)*
        }

        impl Code {
            /// Every code, in the order of the documents.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            pub fn severity(self) -> Severity {
                match self {
                    $(Self::$name => Severity::$severity,)*
                }
            }
        }
    };
}

codes! {
    SettingsValue = "settings.value": Error;
    SettingsUnknown = "settings.unknown": Warning;
    SettingsConflict = "settings.conflict": Warning;
    DatabaseAddress = "database.address": Error;
    DatabaseProgram = "database.program": Error;
    DatabasePrivate = "database.private": Warning;
    DatabaseUnreachable = "database.unreachable": Error;
    DatabaseRefused = "database.refused": Error;
    DatabaseTrouble = "database.trouble": Error;
    DatabaseVersion = "database.version": Error;
    DatabaseReadOnly = "database.read_only": Error;
    DatabaseRole = "database.role": Error;
    DatabaseRights = "database.rights": Error;
    DatabaseGrant = "database.grant": Error;
    DatabaseSharedRoles = "database.shared_roles": Error;
    DatabaseMembers = "database.members": Warning;
    DatabaseCreateRole = "database.createrole": Warning;
    DatabaseConnections = "database.connections": Warning;
    DatabasePooler = "database.pooler": Error;
    DatabaseElsewhere = "database.elsewhere": Error;
    DatabaseForeign = "database.foreign": Error;
    DatabaseNodes = "database.nodes": Error;
    DatabaseRestored = "database.restored": Error;
    SchemaOlder = "schema.older": Warning;
    SchemaNewer = "schema.newer": Warning;
    SchemaUnknown = "schema.unknown": Error;
    ClockDatabase = "clock.database": Warning;
    ClockHttp = "clock.http": Warning;
    KeysMissing = "keys.missing": Error;
    KeysWrong = "keys.wrong": Error;
    KeysLacking = "keys.lacking": Error;
    KeysReplicas = "keys.replicas": Warning;
    KeysTenant = "keys.tenant": Error;
    ReplicasPacks = "replicas.packs": Error;
    ReplicasSettings = "replicas.settings": Warning;
    PacksBroken = "packs.broken": Error;
    PacksVariable = "packs.variable": Error;
    PacksDoubtful = "packs.doubtful": Warning;
    EgressRefused = "egress.refused": Error;
    EgressUnresolved = "egress.unresolved": Error;
    EgressUnreachable = "egress.unreachable": Error;
    EgressTls = "egress.tls": Error;
    ServersCommand = "servers.command": Error;
    ModelUnreachable = "model.unreachable": Error;
    ModelKey = "model.key": Error;
    ModelUnknown = "model.unknown": Warning;
    IssuerUnreachable = "issuer.unreachable": Error;
    IssuerWrong = "issuer.wrong": Error;
    IssuerSecret = "issuer.secret": Error;
    IssuerEndpoint = "issuer.endpoint": Warning;
    UrlUnset = "url.unset": Warning;
    UrlInsecure = "url.insecure": Warning;
    UrlUnreachable = "url.unreachable": Error;
    UrlElsewhere = "url.elsewhere": Error;
    UrlTls = "url.tls": Error;
    ListenTaken = "listen.taken": Error;
    FilesUnwritable = "files.unwritable": Error;
    TracesUnreachable = "traces.unreachable": Error;
    LimitsFiles = "limits.files": Warning;
    LimitsDisk = "limits.disk": Warning;
    DoctorTime = "doctor.time": Warning;
}

impl Finding {
    pub fn new(code: Code, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            code,
            severity: code.severity(),
            message: message.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// `error code: message; remedy`, on one line.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (code, message) = (self.code.as_str(), one_line(&self.message));
        write!(f, "{} {code}: {message}", self.severity)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", one_line(&self.remedy))?;
        }
        Ok(())
    }
}

fn one_line(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ")
}
