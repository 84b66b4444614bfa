//! Signing in at servers (OAuth 2.1): a user is sent to the server's own sign-in and comes back with a code, from which
//! tokens come that are kept as the user's credential, refreshed for all replicas at once, and revoked at the end.

mod clients;
mod revocation;
mod sign_in;
pub mod tokens;

pub use self::{
    clients::{RegisteredClient, forget_client, forget_clients_of, list_clients, list_clients_of},
    revocation::{revoke_in_background, revoke_unused},
    sign_in::{
        BeginError, BegunSignIn, Place, Stale, TakenSignIn, begin, client_document, purge_old,
        redeem, step_up, take,
    },
};
