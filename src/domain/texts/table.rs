//! Every text of the program's own, with the name by which a pack overrides it.

/// A text by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    List,
    NoServers,
    Configured,
    NotConfigured,
    NeedsAttention,
    Prompt,
    Options,
    Optional,
    SecretHint,
    Cancelled,
    NothingToCancel,
    Expired,
    UnknownServer,
    SharedServer,
    Saved,
    Failed,
    KeptOld,
    Unauthorized,
    Unreachable,
    Timeout,
    BadTemplate,
    NotMcp,
    Removed,
    NothingToRemove,
    Missing,
    LineBreak,
    TooLong,
    NotAnAddress,
    NotABoolean,
    NotAnOption,
    OpenLink,
    TypedSecret,
    WrongCode,
    Rejected,
    Guest,
    PageTitle,
    PageSend,
    PageCode,
    PageGone,
    ApprovalRequested,
    ApprovalWaits,
    ApprovalApproved,
    ApprovalSucceeded,
    ApprovalFailed,
    ApprovalUnknown,
    ApprovalRejected,
    ApprovalExpired,
    ApprovalCancelled,
    ApprovalRevoked,
    ApprovalRevokedUndecided,
    ApprovalLapsed,
    ApprovalHappened,
    ApprovalNotHappened,
    ApprovalsWaiting,
    ApprovalsMine,
    ApprovalsNone,
    ApprovalsHow,
    ApprovalVoted,
    ApprovalUsage,
    Menu,
    MenuEmpty,
    MenuUnknown,
    MenuAuthenticate,
    MenuLogout,
    MenuMcpConfig,
    MenuAbortConfig,
    MenuPendingApprovals,
    MenuMyApprovalRequests,
    SignIn,
    SignedInAlready,
    LoggedOut,
    LoggedOutOfKey,
    PromptsNone,
    PromptUnknown,
    PromptMissing,
    PromptExtra,
    PromptFailed,
    AskIntro,
    AskAddress,
    AskHow,
    AskSeveral,
    AskDefault,
    AskNotANumber,
    AskUnfit,
    AskSecret,
    AskUnanswerable,
    AskTooLate,
    AskExpired,
    AskWithdrawn,
    AskNone,
    Skills,
    SkillArguments,
    SkillNeedsApproval,
}

/// Key, its name in packs, and the text in each language.
pub(super) type Row = (Key, &'static str, [&'static str; 3]);

pub(super) const LANGUAGES: [&str; 3] = ["en", "es", "fr"];

pub(super) const TEXTS: &[Row] = &[
    (
        Key::List,
        "MCP_CONFIG_LIST",
        [
            "Which server do you want to connect? Answer with its number or name, or /cancel.",
            "¿Qué servidor quieres conectar? Responde con su número o su nombre, o /cancel.",
            "Quel serveur voulez-vous connecter ? Répondez par son numéro ou son nom, ou /cancel.",
        ],
    ),
    (
        Key::NoServers,
        "MCP_CONFIG_NO_SERVERS",
        [
            "This agent has no servers that need a credential of yours.",
            "Este agente no tiene servidores que necesiten una credencial tuya.",
            "Cet agent n'a pas de serveur qui demande un identifiant de votre part.",
        ],
    ),
    (
        Key::Configured,
        "MCP_CONFIG_CONFIGURED",
        ["connected", "conectado", "connecté"],
    ),
    (
        Key::NotConfigured,
        "MCP_CONFIG_NOT_CONFIGURED",
        ["not connected", "sin conectar", "non connecté"],
    ),
    (
        Key::NeedsAttention,
        "MCP_CONFIG_NEEDS_ATTENTION",
        [
            "needs attention: enter it again",
            "requiere atención: introdúcelo de nuevo",
            "à revoir : saisissez-le à nouveau",
        ],
    ),
    (
        Key::Prompt,
        "MCP_CONFIG_PROMPT",
        [
            "{server}: {label}",
            "{server}: {label}",
            "{server} : {label}",
        ],
    ),
    (
        Key::Options,
        "MCP_CONFIG_OPTIONS",
        [
            "One of: {options}",
            "Una de: {options}",
            "Au choix : {options}",
        ],
    ),
    (
        Key::Optional,
        "MCP_CONFIG_OPTIONAL",
        [
            "(optional; answer with - to leave it out)",
            "(opcional; responde - para omitirlo)",
            "(facultatif ; répondez - pour l'omettre)",
        ],
    ),
    (
        Key::SecretHint,
        "MCP_CONFIG_SECRET_HINT",
        [
            "What you answer is stored encrypted and does not appear in the conversation. /cancel stops.",
            "Tu respuesta se guarda cifrada y no aparece en la conversación. /cancel lo detiene.",
            "Votre réponse est enregistrée chiffrée et n'apparaît pas dans la conversation. /cancel arrête.",
        ],
    ),
    (
        Key::Cancelled,
        "MCP_CONFIG_CANCELLED",
        [
            "Cancelled. Nothing was changed.",
            "Cancelado. No se ha cambiado nada.",
            "Annulé. Rien n'a été modifié.",
        ],
    ),
    (
        Key::NothingToCancel,
        "MCP_CONFIG_NOTHING_TO_CANCEL",
        [
            "There is nothing to cancel.",
            "No hay nada que cancelar.",
            "Il n'y a rien à annuler.",
        ],
    ),
    (
        Key::Expired,
        "MCP_CONFIG_EXPIRED",
        [
            "That took too long, so nothing was stored. Type /connect to begin again.",
            "Ha pasado demasiado tiempo y no se ha guardado nada. Escribe /connect para empezar de nuevo.",
            "Le délai est dépassé, rien n'a été enregistré. Tapez /connect pour recommencer.",
        ],
    ),
    (
        Key::UnknownServer,
        "MCP_CONFIG_UNKNOWN_SERVER",
        [
            "There is no such server here. {list}",
            "Aquí no hay ningún servidor con ese nombre. {list}",
            "Il n'y a pas de serveur de ce nom ici. {list}",
        ],
    ),
    (
        Key::SharedServer,
        "MCP_CONFIG_SHARED_SERVER",
        [
            "{server} is shared by everybody; there is nothing of yours to enter.",
            "{server} es compartido por todos; no tienes que introducir nada.",
            "{server} est partagé par tous ; vous n'avez rien à saisir.",
        ],
    ),
    (
        Key::Saved,
        "MCP_CONFIG_SAVED",
        [
            "✅ {server} is connected. Its tools are ready.",
            "✅ {server} está conectado. Sus herramientas están listas.",
            "✅ {server} est connecté. Ses outils sont prêts.",
        ],
    ),
    (
        Key::Failed,
        "MCP_CONFIG_FAILED",
        [
            "⚠️ {server} is not connected ({code}): {reason} Nothing was stored. Type /connect {server} to try again.",
            "⚠️ {server} no está conectado ({code}): {reason} No se ha guardado nada. Escribe /connect {server} para reintentarlo.",
            "⚠️ {server} n'est pas connecté ({code}) : {reason} Rien n'a été enregistré. Tapez /connect {server} pour réessayer.",
        ],
    ),
    (
        Key::KeptOld,
        "MCP_CONFIG_KEPT_OLD",
        [
            "⚠️ That does not work ({code}): {reason} What you entered for {server} before stays in force.",
            "⚠️ Eso no funciona ({code}): {reason} Sigue en vigor lo que introdujiste antes para {server}.",
            "⚠️ Cela ne fonctionne pas ({code}) : {reason} Ce que vous aviez saisi pour {server} reste en vigueur.",
        ],
    ),
    (
        Key::Unauthorized,
        "MCP_CONFIG_UNAUTHORIZED",
        [
            "the server does not accept what you entered.",
            "el servidor no acepta lo que has introducido.",
            "le serveur n'accepte pas ce que vous avez saisi.",
        ],
    ),
    (
        Key::Unreachable,
        "MCP_CONFIG_UNREACHABLE",
        [
            "the server cannot be reached.",
            "no se puede contactar con el servidor.",
            "le serveur est injoignable.",
        ],
    ),
    (
        Key::Timeout,
        "MCP_CONFIG_TIMEOUT",
        [
            "the server did not answer in time.",
            "el servidor no ha respondido a tiempo.",
            "le serveur n'a pas répondu à temps.",
        ],
    ),
    (
        Key::BadTemplate,
        "MCP_CONFIG_BAD_TEMPLATE",
        [
            "what you entered does not fit where the server wants it.",
            "lo que has introducido no encaja donde el servidor lo espera.",
            "ce que vous avez saisi ne convient pas à l'endroit où le serveur l'attend.",
        ],
    ),
    (
        Key::NotMcp,
        "MCP_CONFIG_NOT_MCP",
        [
            "what answers there is not an MCP server; tell the operator.",
            "lo que responde allí no es un servidor MCP; avisa al operador.",
            "ce qui répond là n'est pas un serveur MCP ; prévenez l'opérateur.",
        ],
    ),
    (
        Key::Removed,
        "MCP_CONFIG_REMOVED",
        [
            "{server} is disconnected and what you entered is deleted.",
            "{server} está desconectado y lo que introdujiste se ha borrado.",
            "{server} est déconnecté et ce que vous aviez saisi est supprimé.",
        ],
    ),
    (
        Key::NothingToRemove,
        "MCP_CONFIG_NOTHING_TO_REMOVE",
        [
            "You have not connected {server}.",
            "No has conectado {server}.",
            "Vous n'avez pas connecté {server}.",
        ],
    ),
    (
        Key::Missing,
        "MCP_CONFIG_MISSING",
        [
            "This needs an answer.",
            "Esto necesita una respuesta.",
            "Il faut une réponse.",
        ],
    ),
    (
        Key::LineBreak,
        "MCP_CONFIG_LINE_BREAK",
        [
            "The answer holds a line break, which cannot be used here.",
            "La respuesta contiene un salto de línea, que aquí no sirve.",
            "La réponse contient un saut de ligne, inutilisable ici.",
        ],
    ),
    (
        Key::TooLong,
        "MCP_CONFIG_TOO_LONG",
        [
            "The answer is too long.",
            "La respuesta es demasiado larga.",
            "La réponse est trop longue.",
        ],
    ),
    (
        Key::NotAnAddress,
        "MCP_CONFIG_NOT_AN_ADDRESS",
        [
            "That is not an address; it begins with https://",
            "Eso no es una dirección; empieza por https://",
            "Ce n'est pas une adresse ; elle commence par https://",
        ],
    ),
    (
        Key::NotABoolean,
        "MCP_CONFIG_NOT_A_BOOLEAN",
        [
            "Answer yes or no.",
            "Responde sí o no.",
            "Répondez oui ou non.",
        ],
    ),
    (
        Key::NotAnOption,
        "MCP_CONFIG_NOT_AN_OPTION",
        [
            "That is none of the options.",
            "No es ninguna de las opciones.",
            "Ce n'est aucune des options.",
        ],
    ),
    (
        Key::OpenLink,
        "MCP_CONFIG_OPEN_LINK",
        [
            "To connect {server}, open this page within ten minutes and enter what it asks for. Do not type it here: this \
             program keeps what you type. Then come back with the code that the page shows.",
            "Para conectar {server}, abre esta página antes de diez minutos e introduce lo que pide. No lo escribas aquí: \
             este programa guarda lo que escribes. Después vuelve con el código que muestra la página.",
            "Pour connecter {server}, ouvrez cette page dans les dix minutes et saisissez ce qu'elle demande. Ne l'écrivez \
             pas ici : ce programme conserve ce que vous tapez. Revenez ensuite avec le code affiché par la page.",
        ],
    ),
    (
        Key::TypedSecret,
        "MCP_CONFIG_TYPED_SECRET",
        [
            "⚠️ That is not the code of the page. If it was a secret, this program has kept it: replace it at its server. \
             Nothing of it was used. Open the page instead, or /cancel.",
            "⚠️ Ese no es el código de la página. Si era un secreto, este programa lo ha guardado: cámbialo en su servidor. \
             No se ha usado. Abre la página, o escribe /cancel.",
            "⚠️ Ce n'est pas le code de la page. Si c'était un secret, ce programme l'a conservé : remplacez-le sur son \
             serveur. Il n'a pas été utilisé. Ouvrez plutôt la page, ou tapez /cancel.",
        ],
    ),
    (
        Key::WrongCode,
        "MCP_CONFIG_WRONG_CODE",
        [
            "⚠️ That was not the code, too many times. Nothing was stored. Type /connect to begin again.",
            "⚠️ Demasiados códigos incorrectos. No se ha guardado nada. Escribe /connect para empezar de nuevo.",
            "⚠️ Trop de codes erronés. Rien n'a été enregistré. Tapez /connect pour recommencer.",
        ],
    ),
    (
        Key::Rejected,
        "MCP_CONFIG_REJECTED",
        [
            "⚠️ {server} does not accept your credential any more. Its tools are gone until you type /connect {server}.",
            "⚠️ {server} ya no acepta tu credencial. Sus herramientas no están disponibles hasta que escribas /connect {server}.",
            "⚠️ {server} n'accepte plus votre identifiant. Ses outils sont indisponibles tant que vous n'avez pas tapé /connect {server}.",
        ],
    ),
    (
        Key::Guest,
        "MCP_CONFIG_GUEST",
        [
            "Sign in first: a credential of your own needs an account.",
            "Inicia sesión primero: una credencial propia necesita una cuenta.",
            "Connectez-vous d'abord : un identifiant personnel demande un compte.",
        ],
    ),
    (
        Key::PageTitle,
        "MCP_CONFIG_PAGE_TITLE",
        [
            "Connect {server}",
            "Conectar {server}",
            "Connecter {server}",
        ],
    ),
    (
        Key::PageSend,
        "MCP_CONFIG_PAGE_SEND",
        ["Continue", "Continuar", "Continuer"],
    ),
    (
        Key::PageCode,
        "MCP_CONFIG_PAGE_CODE",
        [
            "Almost done. Go back to your chat and type this code:",
            "Casi listo. Vuelve al chat y escribe este código:",
            "Presque fini. Revenez à la conversation et tapez ce code :",
        ],
    ),
    (
        Key::PageGone,
        "MCP_CONFIG_PAGE_GONE",
        [
            "This link was used already or is too old. Type /connect in your chat for a new one.",
            "Este enlace ya se ha usado o es demasiado antiguo. Escribe /connect en el chat para obtener otro.",
            "Ce lien a déjà servi ou est trop ancien. Tapez /connect dans la conversation pour en obtenir un autre.",
        ],
    ),
];
