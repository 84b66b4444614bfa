//! The settings themselves, and what the machine allows.

use std::path::{Path, PathBuf};

use nix::{
    sys::statvfs::statvfs,
    unistd::{AccessFlags, access},
};

use super::{
    super::{log_filter, process_limits, serve::find_empty_database},
    Installation, Outcome,
};
use crate::app::runs::deletions;
use domain::{
    config::{Config, Environment, SETTINGS},
    finding::Code,
};
use egress::Egress;

/// The free room that a private Postgres should have.
const LEAST_ROOM: u64 = 1 << 30;

/// The variable with the private hosts that servers of packs may have.
pub(super) const EGRESS_ALLOW: &str = "CHATELAINE_EGRESS_ALLOW";

/// The settings, and what is wrong with them.
pub(super) struct Settings {
    /// Values that cannot be used count as unset.
    pub config: Config,
    pub outcome: Outcome,
    /// The variables whose values cannot be used.
    pub faulty: Vec<&'static str>,
}

impl Settings {
    pub(super) fn read(env: &Environment) -> Self {
        let (mut outcome, mut faulty) = (Outcome::default(), Vec::new());
        for (variable, why) in Config::faults(env) {
            let message = if why.starts_with(variable) {
                why
            } else {
                format!("{variable}: {why}")
            };
            outcome.add(Code::SettingsValue, message, "");
            faulty.push(variable);
        }
        let mut config = Config::from_environment(&env.clone().without(&faulty))
            .expect("what cannot be used was left out");
        for (variable, list) in [
            (EGRESS_ALLOW, &mut config.egress_allow),
            (
                "CHATELAINE_TENANT_EGRESS_ALLOW",
                &mut config.tenant_egress_allow,
            ),
        ] {
            if let Err(why) = Egress::new(list) {
                outcome.add(Code::SettingsValue, format!("{variable}: {why}"), "");
                faulty.push(variable);
                list.clear();
            }
        }
        if let Some(fault) = find_empty_database(&config, env) {
            outcome.add(Code::SettingsValue, fault, "");
            faulty.push(env.database_variable());
        }
        if let Err(why) = log_filter(&config) {
            let message = format!("CHATELAINE_LOG: {why}; `info` is used");
            let remedy = "write it as in `info,chatelaine=debug`";
            outcome.add(Code::SettingsValue, message, remedy);
        }
        find_unknown(env, &mut outcome);
        for sentence in config.contradictions(env) {
            outcome.add(Code::SettingsConflict, sentence, "change one of the two");
        }
        Self {
            config,
            outcome,
            faulty,
        }
    }
}

fn find_unknown(env: &Environment, outcome: &mut Outcome) {
    let known: Vec<&str> = SETTINGS.iter().map(|(name, ..)| *name).collect();
    for name in env.unknown_settings() {
        let near = packs::nearest(name, &known);
        let near = near.map_or_else(String::new, |near| format!("did you mean {near}? "));
        outcome.add(
            Code::SettingsUnknown,
            format!("{name} is no setting"),
            format!(
                "{near}docs/settings.md lists them; give a variable of a pack another beginning"
            ),
        );
    }
}

/// Compares what the settings ask of the machine with what it gives.
pub(super) fn check_machine(here: &Installation) -> Outcome {
    let mut outcome = Outcome::default();
    let wanted = here.config.max_connections;
    let possible = process_limits::raise_file_limit(wanted);
    if possible < wanted {
        let message = format!("{}: {possible} are", process_limits::TOO_FEW_FILES);
        outcome.add(Code::LimitsFiles, message, "");
    }
    let mut add_unwritable = |variable: &str, why: String| {
        let remedy =
            "make the folder, give the user of the service the right to write, or make room";
        outcome.add(Code::FilesUnwritable, format!("{variable}: {why}"), remedy);
    };
    if let Some(list) = &here.config.deletions_file
        && let Err(why) = deletions::examine(list)
    {
        add_unwritable("CHATELAINE_DELETIONS_FILE", format!("{why:#}"));
    }
    if here.config.database_url.is_none() {
        let data = &here.config.data;
        if let Some(folder) = nearest_folder(data)
            && let Err(why) = access(&folder, AccessFlags::W_OK)
        {
            add_unwritable(
                "CHATELAINE_DATA",
                format!("{} cannot be written: {why}", data.display()),
            );
        }
        check_room(here, &mut outcome);
    }
    outcome
}

/// Warns when the private Postgres has no room to grow.
fn check_room(here: &Installation, outcome: &mut Outcome) {
    let data = &here.config.data;
    let Some(room) = nearest_folder(data).and_then(|folder| statvfs(&folder).ok()) else {
        return;
    };
    let free = room.blocks_available().saturating_mul(room.fragment_size());
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

/// The nearest folder that is there: what is not is made below it.
fn nearest_folder(data: &Path) -> Option<PathBuf> {
    let data = std::path::absolute(data).ok()?;
    let folder = data.ancestors().find(|folder| folder.exists())?;
    Some(folder.to_owned())
}
