//! Detects whether a form asks for a secret. A secret that is typed into a conversation is visible to
//! everyone who reads the conversation, so a doubtful field is declined. A personal server's own credential
//! is entered with `/connect`, which keeps it out of the messages.
//!
//! An aid and no wall: the words are those of a list, in the spellings that come to mind (letters that look alike, digits
//! for letters, blanks between letters). A server that wants a secret can always ask for it in other words.

use std::{collections::HashSet, sync::LazyLock};

use super::form::{Field, Format, Kind};
use crate::{hidden::fold, lookalike::skeleton};

/// Words of a field's name or title.
const NAMES: &str = "\
    password passwd pwd passphrase passcode secret secrets token tokens key keys apikey \
    credential credentials pin otp totp mfa card cvv cvc iban ssn bearer jwt seed mnemonic \
    cookie contraseña clave passwort motdepasse mdp kennwort senha hasło wachtwoord lösenord \
    пароль пинкод 密码 密碼 口令 パスワード 비밀번호";
/// What a message or a description says when it asks for one.
const PHRASES: &[&str] = &[
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
    "debit card",
    "card number",
    "bank card",
    "seed phrase",
    "seed words",
    "recovery phrase",
    "recovery code",
    "recovery words",
    "recovery key",
    "backup code",
    "one-time code",
    "one time code",
    "sms code",
    "digit code",
    "code we sent",
    "code we texted",
    "code we emailed",
    "code sent to",
    "code that was sent",
    "code from your authenticator",
    "social security",
    "security code",
    "verification code",
    "authentication code",
    "2fa",
    "two-factor",
    // Spanish
    "contraseña",
    "clave privada",
    "clave secreta",
    "tarjeta de crédito",
    "tarjeta de débito",
    "número de tarjeta",
    "código de verificación",
    "código de seguridad",
    "código que te",
    "código que le",
    "código sms",
    "código por sms",
    "frase de recuperación",
    "frase semilla",
    "seguridad social",
    // French
    "mot de passe",
    "clé privée",
    "clé secrète",
    "carte de crédit",
    "carte bancaire",
    "numéro de carte",
    "code de vérification",
    "code de sécurité",
    "code secret",
    "code reçu",
    "code que nous vous",
    "code envoyé",
    "code par sms",
    "phrase de récupération",
    "sécurité sociale",
    // Some words of others
    "passwort",
    "kennwort",
    "senha",
    "пароль",
    "код из смс",
    "密码",
    "密碼",
    "口令",
    "验证码",
    "驗證碼",
    "パスワード",
    "비밀번호",
];
/// Words that are known even with blanks or marks anywhere between their letters.
const LONG: &[&str] = &[
    "password",
    "passphrase",
    "passcode",
    "passwort",
    "contraseña",
    "motdepasse",
    "пароль",
    "creditcard",
    "cardnumber",
    "privatekey",
    "secretkey",
    "accesstoken",
    "seedphrase",
    "recoveryphrase",
    "socialsecurity",
];

static KNOWN_NAMES: LazyLock<HashSet<String>> =
    LazyLock::new(|| NAMES.split_whitespace().map(looks_of).collect());
static KNOWN_PHRASES: LazyLock<Vec<String>> =
    LazyLock::new(|| PHRASES.iter().map(|phrase| looks_of(phrase)).collect());
static KNOWN_LONG: LazyLock<Vec<String>> =
    LazyLock::new(|| LONG.iter().map(|word| looks_of(word)).collect());

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
        spellings(text).iter().any(|text| {
            words(text)
                .iter()
                .any(|word| KNOWN_NAMES.contains(&looks_of(word)))
        })
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
    spellings(text).iter().any(|text| {
        let looks = looks_of(text);
        let letters: String = looks.chars().filter(|c| c.is_alphanumeric()).collect();
        KNOWN_PHRASES.iter().any(|phrase| looks.contains(phrase))
            || KNOWN_LONG.iter().any(|word| letters.contains(word))
    })
}

/// A text, and what it says when its digits and marks are taken for letters, and single letters for a word.
fn spellings(text: &str) -> [String; 3] {
    let text = fold(text);
    let letters = text.chars().map(|c| match c {
        '4' | '@' => 'a',
        '3' => 'e',
        '1' | '!' => 'i',
        '0' => 'o',
        '5' | '$' => 's',
        '7' => 't',
        c => c,
    });
    let letters = letters.collect();
    let joined = join_letters(&text);
    [text, letters, joined]
}

/// `your P I N` as `your PIN`.
fn join_letters(text: &str) -> String {
    let is_letter =
        |word: &str| word.chars().count() == 1 && word.chars().all(char::is_alphanumeric);
    let mut joined = String::with_capacity(text.len());
    let mut after_letter = false;
    for word in text
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
    {
        let continues = after_letter && is_letter(word);
        if !joined.is_empty() && !continues {
            joined.push(' ');
        }
        joined.push_str(word);
        after_letter = is_letter(word);
    }
    joined
}

/// What a text looks like in whatever case, without accents.
fn looks_of(text: &str) -> String {
    let looks = skeleton(&text.to_lowercase()).to_lowercase();
    looks
        .chars()
        .filter(|c| !('\u{300}'..='\u{36f}').contains(c))
        .collect()
}

/// `apiKey`, `API_KEY` and `api key` are `api` and `key`; `APIKey` too.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let chars: Vec<char> = name.chars().collect();
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
            words.last_mut().expect("there is always one").push(*c);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
