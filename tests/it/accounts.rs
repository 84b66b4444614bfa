//! Tokens, keys, guests: who gets in as whom, and who does not.

mod commands; // `chatelaine tenant` and `chatelaine token`
pub mod household; // a tenant, its issuers, and what a caller sends
mod key_sets; // keys that issuers publish and change
mod keys; // API keys, frontends, guests
mod tokens; // tokens and every reason to refuse one
