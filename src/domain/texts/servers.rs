//! The words around what servers ask and offer besides tools.

use super::table::{Key, Row};

pub(super) const TEXTS: &[Row] = &[
    (
        Key::PromptsNone,
        "PROMPTS_NONE",
        [
            "There are no prompts for you here.",
            "No hay prompts para ti aquí.",
            "Il n'y a pas de prompts pour vous ici.",
        ],
    ),
    (
        Key::PromptUnknown,
        "PROMPT_UNKNOWN",
        [
            "There is no prompt {command} for you here. /prompts lists those that are.",
            "Aquí no hay ningún prompt {command} para ti. /prompts muestra los que hay.",
            "Il n'y a pas de prompt {command} pour vous ici. /prompts en donne la liste.",
        ],
    ),
    (
        Key::PromptMissing,
        "PROMPT_MISSING",
        [
            "{command} also needs: {missing}. Write {usage}",
            "{command} necesita también: {missing}. Escribe {usage}",
            "{command} demande aussi : {missing}. Écrivez {usage}",
        ],
    ),
    (
        Key::PromptExtra,
        "PROMPT_EXTRA",
        [
            "{command} has no argument for “{text}”. Write {usage}",
            "{command} no tiene argumento para «{text}». Escribe {usage}",
            "{command} n'a pas d'argument pour « {text} ». Écrivez {usage}",
        ],
    ),
    (
        Key::PromptFailed,
        "PROMPT_FAILED",
        [
            "{command} could not be used: {reason}",
            "No se ha podido usar {command}: {reason}",
            "{command} n'a pas pu être utilisé : {reason}",
        ],
    ),
];
