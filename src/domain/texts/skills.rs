//! The words of skills.

use super::table::{Key, Row};

pub(super) const TEXTS: &[Row] = &[
    (
        Key::Skills,
        "SKILLS",
        [
            "Skills: each calls its tool directly, with what you write after it",
            "Habilidades: cada una llama directamente a su herramienta con lo que escribas detrás",
            "Compétences : chacune appelle directement son outil avec ce que vous écrivez après elle",
        ],
    ),
    (
        Key::SkillArguments,
        "SKILL_ARGUMENTS",
        [
            "What stands in braces is not one JSON object ({why}). Write {command} TEXT, or {command} {example}",
            "Lo que está entre llaves no es un objeto JSON ({why}). Escribe {command} TEXTO, o {command} {example}",
            "Ce qui est entre accolades n'est pas un objet JSON ({why}). Écrivez {command} TEXTE, ou {command} {example}",
        ],
    ),
    (
        Key::SkillNeedsApproval,
        "SKILL_NEEDS_APPROVAL",
        [
            "needs approval by {approvers}",
            "requiere la aprobación de {approvers}",
            "demande l'accord de {approvers}",
        ],
    ),
];
