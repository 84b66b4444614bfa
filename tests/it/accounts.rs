//! Tokens, keys, guests: who gets in as whom, and who does not.

mod commands; // `chatelaine tenant` and `chatelaine token`
pub mod fixture; // a tenant, its issuers, and what a caller sends
mod frontends; // keys that speak for the users of a frontend
mod key_sets; // keys that issuers publish and change
mod keys; // API keys, guests
mod tokens; // tokens and every reason to refuse one
