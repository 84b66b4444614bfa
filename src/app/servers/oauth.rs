//! Sign-ins at servers (OAuth 2.1). A user signs in at the server's own page and comes back with a code. The program
//! exchanges the code for tokens, keeps them as the user's credential, refreshes them once for all replicas, and
//! revokes them at the end.

mod client_tokens;
mod clients;
mod sign_in;
pub mod tokens;

pub use self::{
    clients::{RegisteredClient, forget_client, forget_clients_of, list_clients, list_clients_of},
    sign_in::{
        BeginError, BegunSignIn, SignInLookup, SignInOrigin, Stale, TakenSignIn, begin,
        client_document, purge_old, redeem, step_up, take,
    },
    tokens::{revoke_in_background, revoke_unused},
};
