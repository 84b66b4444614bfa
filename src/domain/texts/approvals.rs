//! The texts about calls that wait for consent.

use super::table::{Key, Row};

pub(super) const APPROVALS: &[Row] = &[
    (
        Key::ApprovalRequested,
        "APPROVAL_REQUESTED",
        [
            "⏳ {code}: {server} {tool} waits for the approval of {approvers} until {until}. /cancel {code} takes it back.",
            "⏳ {code}: {server} {tool} espera la aprobación de {approvers} hasta {until}. /cancel {code} la retira.",
            "⏳ {code} : {server} {tool} attend l'approbation de {approvers} jusqu'au {until}. /cancel {code} la retire.",
        ],
    ),
    (
        Key::ApprovalWaits,
        "APPROVAL_WAITS",
        [
            "⏳ {code}: {requester} asks for {server} {tool}, until {until}.",
            "⏳ {code}: {requester} solicita {server} {tool}, hasta {until}.",
            "⏳ {code} : {requester} demande {server} {tool}, jusqu'au {until}.",
        ],
    ),
    (
        Key::ApprovalApproved,
        "APPROVAL_APPROVED",
        [
            "👍 {code}: {server} {tool} was approved by {by}.",
            "👍 {code}: {by} ha aprobado {server} {tool}.",
            "👍 {code} : {by} a approuvé {server} {tool}.",
        ],
    ),
    (
        Key::ApprovalSucceeded,
        "APPROVAL_SUCCEEDED",
        [
            "✅ {code}: {server} {tool} was approved by {by} and carried out.",
            "✅ {code}: {by} ha aprobado {server} {tool} y se ha ejecutado.",
            "✅ {code} : {by} a approuvé {server} {tool}, qui a été exécuté.",
        ],
    ),
    (
        Key::ApprovalFailed,
        "APPROVAL_FAILED",
        [
            "⚠️ {code}: {server} {tool} was approved by {by} and failed.",
            "⚠️ {code}: {by} ha aprobado {server} {tool}, pero ha fallado.",
            "⚠️ {code} : {by} a approuvé {server} {tool}, mais l'exécution a échoué.",
        ],
    ),
    (
        Key::ApprovalUnknown,
        "APPROVAL_OUTCOME_UNKNOWN",
        [
            "⚠️ {code}: {server} {tool} was approved by {by}, and nobody knows whether it was carried out. Check before trying again.",
            "⚠️ {code}: {by} ha aprobado {server} {tool}, y no se sabe si se ha ejecutado. Compruébalo antes de reintentarlo.",
            "⚠️ {code} : {by} a approuvé {server} {tool}, et nul ne sait si l'exécution a eu lieu. Vérifiez avant de réessayer.",
        ],
    ),
    (
        Key::ApprovalRejected,
        "APPROVAL_REJECTED",
        [
            "⛔ {code}: {server} {tool} was rejected by {by}. {reason}",
            "⛔ {code}: {by} ha rechazado {server} {tool}. {reason}",
            "⛔ {code} : {by} a refusé {server} {tool}. {reason}",
        ],
    ),
    (
        Key::ApprovalExpired,
        "APPROVAL_EXPIRED",
        [
            "⌛ {code}: nobody approved {server} {tool} in time. It was not carried out.",
            "⌛ {code}: nadie ha aprobado {server} {tool} a tiempo. No se ha ejecutado.",
            "⌛ {code} : personne n'a approuvé {server} {tool} à temps. Rien n'a été exécuté.",
        ],
    ),
    (
        Key::ApprovalCancelled,
        "APPROVAL_CANCELLED",
        [
            "🚫 {code}: {server} {tool} was taken back by {by}. It was not carried out.",
            "🚫 {code}: {by} ha retirado {server} {tool}. No se ha ejecutado.",
            "🚫 {code} : {by} a retiré {server} {tool}. Rien n'a été exécuté.",
        ],
    ),
    (
        Key::ApprovalRevoked,
        "APPROVAL_REVOKED",
        [
            "⛔ {code}: {server} {tool} was approved by {by} and not carried out: {reason}",
            "⛔ {code}: {by} ha aprobado {server} {tool}, pero no se ha ejecutado: {reason}",
            "⛔ {code} : {by} a approuvé {server} {tool}, mais rien n'a été exécuté : {reason}",
        ],
    ),
    (
        Key::ApprovalRevokedUndecided,
        "APPROVAL_REVOKED_UNDECIDED",
        [
            "⛔ {code}: {server} {tool} was not carried out: {reason}",
            "⛔ {code}: {server} {tool} no se ha ejecutado: {reason}",
            "⛔ {code} : {server} {tool} n'a pas été exécuté : {reason}",
        ],
    ),
    (
        Key::ApprovalLapsed,
        "APPROVAL_LAPSED",
        [
            "⌛ {code}: {server} {tool} was approved by {by}, but its server could not be reached in time. It was not carried out.",
            "⌛ {code}: {by} ha aprobado {server} {tool}, pero no se ha podido contactar con su servidor a tiempo. No se ha ejecutado.",
            "⌛ {code} : {by} a approuvé {server} {tool}, mais son serveur est resté injoignable. Rien n'a été exécuté.",
        ],
    ),
    (
        Key::ApprovalHappened,
        "APPROVAL_RECORDED_DONE",
        [
            "📌 {code}: {by} found out that {server} {tool} was carried out. {note}",
            "📌 {code}: {by} ha comprobado que {server} {tool} se ejecutó. {note}",
            "📌 {code} : {by} a constaté que {server} {tool} a bien été exécuté. {note}",
        ],
    ),
    (
        Key::ApprovalNotHappened,
        "APPROVAL_RECORDED_NOT_DONE",
        [
            "📌 {code}: {by} found out that {server} {tool} was not carried out. {note}",
            "📌 {code}: {by} ha comprobado que {server} {tool} no se ejecutó. {note}",
            "📌 {code} : {by} a constaté que {server} {tool} n'a pas été exécuté. {note}",
        ],
    ),
    (
        Key::ApprovalsWaiting,
        "APPROVALS_WAITING",
        [
            "These wait for your decision:",
            "Esperan tu decisión:",
            "Ces demandes attendent votre décision :",
        ],
    ),
    (
        Key::ApprovalsMine,
        "APPROVALS_MINE",
        [
            "Your own requests:",
            "Tus solicitudes:",
            "Vos propres demandes :",
        ],
    ),
    (
        Key::ApprovalsNone,
        "APPROVALS_NONE",
        [
            "Nothing waits for you.",
            "No hay nada que te espere.",
            "Rien ne vous attend.",
        ],
    ),
    (
        Key::ApprovalsHow,
        "APPROVALS_HOW",
        [
            "/approve CODE or /reject CODE reason decides.",
            "/approve CÓDIGO o /reject CÓDIGO motivo decide.",
            "/approve CODE ou /reject CODE motif décide.",
        ],
    ),
    (
        Key::ApprovalVoted,
        "APPROVAL_VOTED",
        [
            "Your approval of {code} counts. It needs {more} more.",
            "Tu aprobación de {code} cuenta. Faltan {more}.",
            "Votre approbation de {code} compte. Il en manque {more}.",
        ],
    ),
    (
        Key::ApprovalUsage,
        "APPROVAL_USAGE",
        [
            "Write {command} and the code of a request, as /approvals shows it.",
            "Escribe {command} y el código de una solicitud, como lo muestra /approvals.",
            "Écrivez {command} et le code d'une demande, tel que /approvals l'affiche.",
        ],
    ),
];
