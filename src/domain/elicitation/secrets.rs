//! Detects whether a form asks for a secret. A secret that is typed into a conversation is visible to
//! everyone who reads the conversation, so a doubtful field is declined. A personal server's own credential
//! is entered with `/connect`, which keeps it out of the messages.

use super::form::{Field, Format, Kind};
use crate::domain::hidden::fold;

/// Words of a field's name or title.
const NAMES: &str = "\
    password passwd pwd passphrase passcode secret secrets token tokens key keys apikey \
    credential credentials pin otp totp mfa card cvv cvc iban ssn bearer jwt seed mnemonic \
    cookie contraseña clave passwort motdepasse";
/// What a message or a description says when it asks for one.
const PHRASES: [&str; 24] = [
    "password",
    "passphrase",
    "passcode",
    "secret key",
    "api key",
    "apikey",
    "access token",
    "auth token",
    "bearer token",
    "private key",
    "credit card",
    "card number",
    "seed phrase",
    "one-time code",
    "contraseña",
    "mot de passe",
    "passwort",
    "security code",
    "verification code",
    "authentication code",
    "2fa",
    "two-factor",
    "código de verificación",
    "code de vérification",
];

/// The label of the first secret that the form asks for, for people.
pub(super) fn asked_for(message: &str, fields: &[Field]) -> Option<String> {
    let field = fields.iter().find(|field| is_secret(field));
    field.map(|field| field.label().to_owned()).or_else(|| {
        // Only in a form with a text field: a yes-or-no question about passwords asks for no password.
        let typed = fields
            .iter()
            .any(|field| matches!(field.kind, Kind::Text { .. }));
        (typed && says(message)).then(|| message.to_owned())
    })
}

fn is_secret(field: &Field) -> bool {
    // A choice and a yes or no are no secret, whatever they are called.
    let (Kind::Text { .. } | Kind::Number { .. }) = &field.kind else {
        return false;
    };
    let named = |text: &str| {
        words(text)
            .iter()
            .any(|word| NAMES.split(' ').any(|name| name == word))
    };
    matches!(
        field.kind,
        Kind::Text {
            format: Some(Format::Password),
            ..
        }
    ) || named(&field.name)
        || says(&field.name)
        || field
            .title
            .as_deref()
            .is_some_and(|title| named(title) || says(title))
        || field.description.as_deref().is_some_and(says)
}

fn says(text: &str) -> bool {
    let text = fold(text).to_lowercase();
    PHRASES.iter().any(|word| text.contains(word))
}

/// `apiKey`, `API_KEY` and `api key` are `api` and `key`; `APIKey` too.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let chars: Vec<char> = fold(name).chars().collect();
    for (at, c) in chars.iter().enumerate() {
        let after_lower =
            at > 0 && (chars[at - 1].is_lowercase() || chars[at - 1].is_ascii_digit());
        let before_lower = chars.get(at + 1).is_some_and(|next| next.is_lowercase());
        let after_upper = at > 0 && chars[at - 1].is_uppercase();
        if !c.is_alphanumeric()
            || (c.is_uppercase() && (after_lower || (after_upper && before_lower)))
        {
            words.push(String::new());
        }
        if c.is_alphabetic() {
            words
                .last_mut()
                .expect("there is always one")
                .extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
