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
    (
        Key::AskIntro,
        "ASK_INTRO",
        [
            "The server {server} asks you before it goes on with {tool}: {what}",
            "El servidor {server} te pregunta antes de seguir con {tool}: {what}",
            "Le serveur {server} vous demande avant de poursuivre {tool} : {what}",
        ],
    ),
    (
        Key::AskAddress,
        "ASK_ADDRESS",
        [
            "It wants you to open the address below, at {host}. Nobody here opens it. Open it only if you trust {host}, and \
             answer yes when you are done there.",
            "Quiere que abras la dirección de abajo, en {host}. Aquí nadie la abre. Ábrela solo si confías en {host} y \
             responde sí cuando hayas terminado allí.",
            "Il vous demande d'ouvrir l'adresse ci-dessous, chez {host}. Personne ici ne l'ouvre. Ne l'ouvrez que si vous \
             faites confiance à {host}, et répondez oui quand vous y aurez terminé.",
        ],
    ),
    (
        Key::AskHow,
        "ASK_HOW",
        [
            "Your next message is the answer and goes to that server. /decline refuses, /cancel leaves off; after \
             {minutes} minutes it ends by itself.",
            "Tu próximo mensaje es la respuesta y va a ese servidor. /decline la rechaza, /cancel la deja; tras \
             {minutes} minutos termina sola.",
            "Votre prochain message est la réponse et va à ce serveur. /decline refuse, /cancel abandonne ; après \
             {minutes} minutes, cela se termine tout seul.",
        ],
    ),
    (
        Key::AskSeveral,
        "ASK_SEVERAL",
        [
            "Any of these, separated by commas: {options}",
            "Cualquiera de estas, separadas por comas: {options}",
            "Au choix, séparés par des virgules : {options}",
        ],
    ),
    (
        Key::AskDefault,
        "ASK_DEFAULT",
        [
            "(answer with - for {value})",
            "(responde - para {value})",
            "(répondez - pour {value})",
        ],
    ),
    (
        Key::AskNotANumber,
        "ASK_NOT_A_NUMBER",
        [
            "Answer with a number.",
            "Responde con un número.",
            "Répondez par un nombre.",
        ],
    ),
    (
        Key::AskUnfit,
        "ASK_UNFIT",
        [
            "That does not fit. {limits}",
            "Eso no encaja. {limits}",
            "Cela ne convient pas. {limits}",
        ],
    ),
    (
        Key::AskSecret,
        "ASK_SECRET",
        [
            "The server {server} asked you for a secret in the chat ({what}). It was declined for you: nobody should type \
             a secret here.",
            "El servidor {server} te ha pedido un secreto en el chat ({what}). Se ha rechazado por ti: nadie debe escribir \
             un secreto aquí.",
            "Le serveur {server} vous a demandé un secret dans le chat ({what}). Cela a été refusé pour vous : personne ne \
             devrait taper un secret ici.",
        ],
    ),
    (
        Key::AskUnanswerable,
        "ASK_UNANSWERABLE",
        [
            "The server {server} asked for something that nobody can answer here: {what}.",
            "El servidor {server} ha pedido algo que aquí nadie puede responder: {what}.",
            "Le serveur {server} a demandé quelque chose à quoi personne ne peut répondre ici : {what}.",
        ],
    ),
    (
        Key::AskTooLate,
        "ASK_TOO_LATE",
        [
            "The server {server} asked you something in the middle of {tool}: “{what}”. It was declined for you: it \
             could not be put to you here and now.",
            "El servidor {server} te ha preguntado en medio de {tool}: «{what}». Se ha rechazado por ti: no se \
             te podía hacer aquí y ahora.",
            "Le serveur {server} vous a demandé au milieu de {tool} : « {what} ». Cela a été refusé pour vous : \
             la question ne pouvait pas vous être posée ici et maintenant.",
        ],
    ),
    (
        Key::AskExpired,
        "ASK_EXPIRED",
        [
            "Nobody answered what the server {server} asked, so the call was not carried on.",
            "Nadie ha respondido a lo que preguntó el servidor {server}, así que la llamada no ha seguido.",
            "Personne n'a répondu à la question du serveur {server} ; l'appel n'a donc pas été poursuivi.",
        ],
    ),
    (
        Key::AskWithdrawn,
        "ASK_WITHDRAWN",
        [
            "What the server {server} asked is no longer open: it was not answered in time, or the server does not wait for \
             the answer any more.",
            "Lo que preguntó el servidor {server} ya no está abierto: no se respondió a tiempo, o el servidor ya no espera \
             la respuesta.",
            "La question du serveur {server} n'est plus ouverte : elle est restée sans réponse à temps, ou le serveur \
             n'attend plus la réponse.",
        ],
    ),
    (
        Key::AskNone,
        "ASK_NONE",
        [
            "Nobody asks you anything at the moment.",
            "Nadie te pregunta nada ahora.",
            "Personne ne vous demande rien en ce moment.",
        ],
    ),
];
