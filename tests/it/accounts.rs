//! Tokens, keys, guests: who gets in as whom, and who does not.

mod commands; // `chatelaine tenant` and `chatelaine token`
mod frontends; // keys that speak for the users of a frontend
pub mod household; // a tenant, its issuers, and what a caller sends
mod key_sets; // keys that issuers publish and change
mod keys; // API keys, guests
mod tokens; // tokens and every reason to refuse one
