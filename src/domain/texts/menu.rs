//! The words of the menu, and of signing in and out.

use super::table::{Key, Row};

pub(super) const TEXTS: &[Row] = &[
    (
        Key::Menu,
        "MENU",
        [
            "What would you like to do? Type the command.",
            "¿Qué quieres hacer? Escribe el comando.",
            "Que voulez-vous faire ? Tapez la commande.",
        ],
    ),
    (
        Key::MenuEmpty,
        "MENU_EMPTY",
        [
            "There is nothing in the menu for you at the moment.",
            "No hay nada en el menú para ti en este momento.",
            "Il n'y a rien dans le menu pour vous en ce moment.",
        ],
    ),
    (
        Key::MenuUnknown,
        "MENU_UNKNOWN",
        [
            "That is not in your menu at the moment.",
            "Eso no está en tu menú en este momento.",
            "Cela n'est pas dans votre menu en ce moment.",
        ],
    ),
    (
        Key::MenuAuthenticate,
        "MENU_AUTHENTICATE",
        ["Sign in", "Iniciar sesión", "Se connecter"],
    ),
    (
        Key::MenuLogout,
        "MENU_LOGOUT",
        ["Sign out", "Cerrar sesión", "Se déconnecter"],
    ),
    (
        Key::MenuMcpConfig,
        "MENU_MCP_CONFIG",
        [
            "Connect your servers",
            "Conectar tus servidores",
            "Connecter vos serveurs",
        ],
    ),
    (
        Key::MenuAbortConfig,
        "MENU_ABORT_CONFIG",
        [
            "Stop connecting",
            "Dejar de conectar",
            "Abandonner la connexion",
        ],
    ),
    (
        Key::MenuPendingApprovals,
        "MENU_PENDING_APPROVALS",
        [
            "Pending approvals",
            "Aprobaciones pendientes",
            "Approbations en attente",
        ],
    ),
    (
        Key::MenuMyApprovalRequests,
        "MENU_MY_APPROVAL_REQUESTS",
        ["My requests", "Mis solicitudes", "Mes demandes"],
    ),
    (
        Key::SignIn,
        "SIGN_IN",
        [
            "You are here as a guest. Sign in with the app that you are using, then come back to this conversation.",
            "Estás aquí como invitado. Inicia sesión en la aplicación que usas y vuelve a esta conversación.",
            "Vous êtes ici en tant qu'invité. Connectez-vous dans l'application que vous utilisez, puis revenez ici.",
        ],
    ),
    (
        Key::SignedInAlready,
        "SIGNED_IN_ALREADY",
        [
            "You are signed in.",
            "Ya has iniciado sesión.",
            "Vous êtes connecté.",
        ],
    ),
    (
        Key::LoggedOut,
        "LOGGED_OUT",
        [
            "You are signed out and your connections are closed. What you entered for your servers is kept, sealed.",
            "Has cerrado la sesión y tus conexiones. Lo que introdujiste para tus servidores se conserva cifrado.",
            "Vous êtes déconnecté et vos connexions sont fermées. Vos identifiants restent conservés, chiffrés.",
        ],
    ),
    (
        Key::LoggedOutOfKey,
        "LOGGED_OUT_OF_KEY",
        [
            "Your connections are closed. Sign out in the app that you are using as well: it speaks for you.",
            "Tus conexiones están cerradas. Cierra también la sesión en la aplicación que usas: habla por ti.",
            "Vos connexions sont fermées. Déconnectez-vous aussi de l'application utilisée : elle parle pour vous.",
        ],
    ),
];
