//! The settings themselves, and what the machine allows.

use nix::sys::statvfs::statvfs;

use super::{
    super::{log_filter, process_limits, serve::EMPTY_DATABASE_URL},
    Installation, Outcome,
};
use domain::{
    config::{Config, Environment, SETTINGS},
    finding::Code,
};

/// The free room that a private Postgres should have.
const LEAST_ROOM: u64 = 1 << 30;

/// What is wrong with the settings.
#[derive(Default)]
pub(super) struct Faults {
    pub outcome: Outcome,
    /// The variables whose values cannot be used.
    pub faulty: Vec<&'static str>,
}

/// Reads the settings; those that cannot be used count as unset.
pub(super) fn read(env: &Environment) -> (Config, Faults) {
    let mut faults = Faults::default();
    for (variable, why) in Config::faults(env) {
        let message = if why.starts_with(variable) {
            why
        } else {
            format!("{variable}: {why}")
        };
        faults.outcome.add(Code::SettingsValue, message, "");
        faults.faulty.push(variable);
    }
    let usable = env.clone().without(&faults.faulty);
    let config = Config::from_environment(&usable)
        .or_else(|_| Config::from_environment(&Environment::default()))
        .unwrap_or_else(|why| unreachable!("every default is a valid setting: {why}"));
    if config.database_url.is_none() && env.get("DATABASE_URL").is_some() {
        faults
            .outcome
            .add(Code::SettingsValue, EMPTY_DATABASE_URL, "");
        faults.faulty.push("DATABASE_URL");
    }
    if let Err(why) = log_filter(&config) {
        let message = format!("CHATELAINE_LOG: {why}; `info` is used");
        faults.outcome.add(
            Code::SettingsValue,
            message,
            "write it as in `info,chatelaine=debug`",
        );
    }
    let known: Vec<&str> = SETTINGS.iter().map(|(name, ..)| *name).collect();
    for name in env.unknown_settings() {
        let near = packs::nearest(name, &known);
        let near = near.map_or_else(String::new, |near| format!("did you mean {near}? "));
        faults.outcome.add(
            Code::SettingsUnknown,
            format!("{name} is no setting"),
            format!(
                "{near}docs/settings.md lists them; give a variable of a pack another beginning"
            ),
        );
    }
    for sentence in config.contradictions(env) {
        let remedy = "change one of the two";
        faults.outcome.add(Code::SettingsConflict, sentence, remedy);
    }
    (config, faults)
}

/// Compares what the settings ask of the machine with what it gives.
pub(super) fn check_limits(here: &Installation) -> Outcome {
    let mut outcome = Outcome::default();
    let wanted = here.config.max_connections;
    let possible = process_limits::raise_file_limit(wanted);
    if possible < wanted {
        let message = format!("{}: {possible} are", process_limits::TOO_FEW_FILES);
        outcome.add(Code::LimitsFiles, message, "");
    }
    if here.config.database_url.is_none() {
        check_room(here, &mut outcome);
    }
    outcome
}

/// Warns when the private Postgres has no room to grow.
fn check_room(here: &Installation, outcome: &mut Outcome) {
    let data = &here.config.data;
    // What is not there yet is made below the nearest folder that is.
    let existing = std::path::absolute(data).ok();
    let existing = existing
        .as_deref()
        .and_then(|data| data.ancestors().find(|folder| folder.exists()));
    let Some(room) = existing.and_then(|folder| statvfs(folder).ok()) else {
        return;
    };
    let free = u64::from(room.blocks_available()).saturating_mul(room.fragment_size().into());
    if free < LEAST_ROOM {
        outcome.add(
            Code::LimitsDisk,
            format!(
                "CHATELAINE_DATA ({}) has {} MiB left, and a private Postgres grows there",
                data.display(),
                free >> 20
            ),
            "make room, or choose another folder or a DATABASE_URL",
        );
    }
}
