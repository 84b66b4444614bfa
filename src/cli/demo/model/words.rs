//! Words of sentences and of names, and the languages, currencies and places that they belong to.

/// A language that the demo model answers in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lang {
    En,
    Es,
    Fr,
}

impl Lang {
    pub(super) const ALL: [Self; 3] = [Self::En, Self::Es, Self::Fr];

    /// The one of three texts that is in this language.
    pub(super) fn of<T: Copy>(self, texts: &[T; 3]) -> T {
        texts[self as usize]
    }
}

/// A word and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Word {
    /// In lower case, without accents.
    pub(super) folded: String,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The words of a text. Numbers stay whole; an apostrophe divides.
pub(super) fn words(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut open: Option<usize> = None;
    let mut chars = text.char_indices().peekable();
    let mut last = ' ';
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map_or(' ', |(_, next)| *next);
        let joins = match c {
            ',' | '\'' | '’' => last.is_ascii_digit() && next.is_ascii_digit(),
            // Groups of a number, as French writes them.
            c if c.is_whitespace() && next.is_ascii_digit() => {
                open.is_some_and(|start| are_groups(&text[start..at], &text[at + c.len_utf8()..]))
            }
            '.' | ':' | '/' | '-' | '@' => last.is_alphanumeric() && next.is_alphanumeric(),
            c => c.is_alphanumeric() || c == '_',
        };
        match (joins, open) {
            (true, None) => open = Some(at),
            (false, Some(start)) => {
                push(&mut words, text, start, at);
                open = None;
            }
            _ => {}
        }
        if "€$£¥".contains(c) {
            push(&mut words, text, at, at + c.len_utf8());
        }
        last = c;
    }
    if let Some(start) = open {
        push(&mut words, text, start, text.len());
    }
    words
}

/// Whether these are groups of a number and what is behind a blank begins with another one.
fn are_groups(before: &str, behind: &str) -> bool {
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mut groups = before.split(char::is_whitespace);
    let first = groups.next().unwrap_or_default();
    let end = behind.find(|c: char| !c.is_ascii_digit());
    (1..=3).contains(&first.len())
        && is_digits(first)
        && groups.all(|group| group.len() == 3 && is_digits(group))
        && end.unwrap_or(behind.len()) == 3
}

/// Adds a word, or two where an amount and its currency, or two currencies, are written together.
fn push(words: &mut Vec<Word>, text: &str, start: usize, end: usize) {
    let raw = &text[start..end];
    let parts = raw.split_once('/').or_else(|| raw.split_once('-'));
    if let Some((left, right)) = parts
        && currency(left).is_some()
        && currency(right).is_some()
    {
        push(words, text, start, start + left.len());
        return push(words, text, end - right.len(), end);
    }
    let digits = raw.find(|c: char| c.is_alphabetic());
    if let Some(digits) = digits.filter(|at| *at > 0 && currency(&raw[*at..]).is_some()) {
        push(words, text, start, start + digits);
        return push(words, text, start + digits, end);
    }
    words.push(Word {
        folded: fold(raw),
        start,
        end,
    });
}

/// Lower case without accents.
pub(super) fn fold(text: &str) -> String {
    let plain = |c: char| match c {
        'á' | 'à' | 'â' | 'ä' | 'ã' | 'å' => 'a',
        'é' | 'è' | 'ê' | 'ë' => 'e',
        'í' | 'ì' | 'î' | 'ï' => 'i',
        'ó' | 'ò' | 'ô' | 'ö' | 'õ' => 'o',
        'ú' | 'ù' | 'û' | 'ü' => 'u',
        'ñ' => 'n',
        'ç' => 'c',
        c => c,
    };
    text.chars()
        .flat_map(char::to_lowercase)
        .map(plain)
        .collect()
}

/// The words of a name such as `from_account` or `fromAccount`.
pub(super) fn name_words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        let begins = !c.is_alphanumeric() || (c.is_uppercase() && was_lower);
        if begins {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase() || c.is_ascii_digit();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Where a phrase stands among words: its first word and the one behind it. `_` is for at most two words of any kind.
pub(super) fn find_phrase(phrase: &str, words: &[Word]) -> Option<(usize, usize)> {
    (0..words.len()).find_map(|start| Some((start, phrase_end(phrase, words, start)?)))
}

fn phrase_end(phrase: &str, words: &[Word], start: usize) -> Option<usize> {
    let (first, rest) = phrase.split_once(' ').unwrap_or((phrase, ""));
    if first == "_" {
        return (start..=start + 2).find_map(|start| phrase_end(rest, words, start));
    }
    if words.get(start)?.folded != first {
        return None;
    }
    if rest.is_empty() {
        return Some(start + 1);
    }
    phrase_end(rest, words, start + 1)
}

/// Words that tell a language. Those that two of the languages share are not here.
const TELLING: [&[&str]; 3] = [
    &[
        "the", "is", "are", "what", "how", "many", "much", "please", "pay", "send", "to", "and",
        "my", "can", "you", "of", "hello", "hi", "hey", "thanks", "thank", "rate", "rates", "time",
        "write", "show", "list", "give", "for", "from", "here", "use", "balance", "balances", "i",
        "do", "have", "which", "who", "it", "with", "note", "notes", "transfer", "wire", "yes",
    ],
    &[
        "el",
        "los",
        "las",
        "cuanto",
        "cuantos",
        "cuantas",
        "hola",
        "gracias",
        "favor",
        "paga",
        "pagar",
        "transfiere",
        "envia",
        "y",
        "mi",
        "mis",
        "puedo",
        "puedes",
        "hora",
        "tipo",
        "cambio",
        "saldo",
        "saldos",
        "nota",
        "notas",
        "escribe",
        "apunta",
        "hay",
        "aqui",
        "usar",
        "cuenta",
        "cuentas",
        "muestra",
        "dame",
        "del",
        "al",
        "buenos",
        "buenas",
        "dias",
        "por",
        "para",
        "dolares",
        "libras",
        "una",
        "con",
        "son",
        "cual",
        "cuales",
        "quien",
        "herramientas",
        "borra",
        "busca",
        "lista",
        "dime",
        "quiero",
        "desde",
    ],
    &[
        "le", "quel", "quelle", "quels", "quelles", "combien", "bonjour", "bonsoir", "salut",
        "merci", "paie", "paye", "payer", "payez", "vire", "virement", "envoie", "envoyez", "et",
        "mon", "mes", "je", "puis", "peux", "heure", "taux", "change", "solde", "soldes", "ecris",
        "est", "sont", "ici", "utiliser", "vous", "plait", "compte", "comptes", "au", "du", "des",
        "montre", "donne", "pour", "depuis", "avec", "livres", "outils", "qui", "moi", "nous",
        "cherche", "supprime", "liste", "sur", "notez", "faire", "quoi",
    ],
];
/// Letters and signs that only one of the languages has.
const LETTERS: [&[char]; 3] = [
    &[],
    &['ñ', '¿', '¡'],
    &['à', 'è', 'ê', 'ç', 'œ', 'ù', 'û', 'î'],
];

/// The language of a text, if its words tell one.
pub(super) fn language(text: &str) -> Option<Lang> {
    let words = words(text);
    let lower = text.to_lowercase();
    let score = |lang: Lang| {
        let telling = lang.of(&TELLING);
        let known = words
            .iter()
            .filter(|word| telling.contains(&word.folded.as_str()));
        known.count() + usize::from(lower.contains(lang.of(&LETTERS)))
    };
    let scores = Lang::ALL.map(score);
    let best = scores.iter().max().copied().unwrap_or_default();
    let mut having = Lang::ALL
        .into_iter()
        .filter(|lang| lang.of(&scores) == best);
    match (having.next(), having.next()) {
        (Some(lang), None) if best > 0 => Some(lang),
        _ => None,
    }
}

const CURRENCIES: [(&str, &[&str]); 9] = [
    ("EUR", &["eur", "euro", "euros", "€"]),
    (
        "USD",
        &[
            "usd", "dollar", "dollars", "dolar", "dolares", "buck", "bucks", "$",
        ],
    ),
    (
        "GBP",
        &[
            "gbp", "pound", "pounds", "sterling", "libra", "libras", "livre", "livres", "£",
        ],
    ),
    ("CHF", &["chf", "franc", "francs", "franco", "francos"]),
    ("JPY", &["jpy", "yen", "yens", "yenes", "¥"]),
    ("CNY", &["cny", "yuan", "yuans"]),
    (
        "INR",
        &[
            "inr", "rupee", "rupees", "rupia", "rupias", "roupie", "roupies",
        ],
    ),
    ("MXN", &["mxn"]),
    ("CAD", &["cad"]),
];
/// Known when they are written in capitals, because some of them are words.
const OTHER_CODES: [&str; 24] = [
    "AED", "ARS", "AUD", "BGN", "BRL", "CLP", "COP", "CZK", "DKK", "HKD", "HUF", "IDR", "ILS",
    "ISK", "KRW", "NOK", "NZD", "PEN", "PLN", "RON", "SEK", "SGD", "TRY", "ZAR",
];

/// The code of the currency that a word names.
pub(super) fn currency(word: &str) -> Option<&'static str> {
    let folded = fold(word);
    let known = CURRENCIES
        .iter()
        .find(|(_, names)| names.contains(&folded.as_str()));
    let known = known.map(|(code, _)| *code);
    known.or_else(|| OTHER_CODES.iter().copied().find(|code| *code == word))
}

/// Whether a word is meant as a number, readable or not. A time, a date and `3rd` are none.
pub(super) fn is_number(word: &str) -> bool {
    let is_part =
        |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '\'' | '’') || c.is_whitespace();
    let rest = word.trim_start_matches(is_part);
    let is_short = ["", "k", "m"].contains(&rest);
    let is_power = || {
        rest.strip_prefix('e')
            .is_some_and(|power| power.bytes().all(|c| c.is_ascii_digit()))
    };
    word.starts_with(|c: char| c.is_ascii_digit()) && (is_short || is_power())
}

/// Time zones by the names of cities, without accents.
const ZONES: [(&str, &[&str]); 42] = [
    ("Europe/London", &["london", "londres", "uk", "england"]),
    ("Europe/Paris", &["paris", "france", "francia", "lyon"]),
    (
        "Europe/Madrid",
        &[
            "madrid",
            "spain",
            "espana",
            "espagne",
            "barcelona",
            "barcelone",
        ],
    ),
    (
        "Europe/Berlin",
        &[
            "berlin",
            "germany",
            "alemania",
            "allemagne",
            "munich",
            "frankfurt",
            "francfort",
        ],
    ),
    (
        "Europe/Rome",
        &["rome", "roma", "italy", "italia", "italie", "milan"],
    ),
    (
        "Europe/Lisbon",
        &["lisbon", "lisboa", "lisbonne", "portugal"],
    ),
    ("Europe/Vienna", &["vienna", "viena", "vienne"]),
    (
        "Europe/Zurich",
        &["zurich", "geneva", "ginebra", "geneve", "bern", "berne"],
    ),
    ("Europe/Amsterdam", &["amsterdam"]),
    ("Europe/Brussels", &["brussels", "bruselas", "bruxelles"]),
    ("Europe/Dublin", &["dublin"]),
    ("Europe/Athens", &["athens", "atenas", "athenes"]),
    ("Europe/Stockholm", &["stockholm", "estocolmo"]),
    ("Europe/Oslo", &["oslo"]),
    ("Europe/Copenhagen", &["copenhagen", "copenhague"]),
    ("Europe/Warsaw", &["warsaw", "varsovia", "varsovie"]),
    ("Europe/Prague", &["prague", "praga"]),
    ("Europe/Istanbul", &["istanbul", "estambul"]),
    ("Europe/Moscow", &["moscow", "moscu", "moscou"]),
    (
        "America/New_York",
        &[
            "new york",
            "nueva york",
            "nyc",
            "boston",
            "washington",
            "miami",
        ],
    ),
    ("America/Chicago", &["chicago"]),
    (
        "America/Los_Angeles",
        &["los angeles", "san francisco", "seattle", "california"],
    ),
    ("America/Toronto", &["toronto", "montreal"]),
    (
        "America/Mexico_City",
        &["mexico", "mexico city", "ciudad de mexico"],
    ),
    ("America/Bogota", &["bogota"]),
    ("America/Lima", &["lima"]),
    ("America/Santiago", &["santiago"]),
    ("America/Argentina/Buenos_Aires", &["buenos aires"]),
    ("America/Sao_Paulo", &["sao paulo"]),
    ("Africa/Cairo", &["cairo", "el cairo", "le caire"]),
    ("Africa/Lagos", &["lagos"]),
    ("Africa/Nairobi", &["nairobi"]),
    (
        "Africa/Johannesburg",
        &["johannesburg", "johannesburgo", "cape town"],
    ),
    ("Asia/Dubai", &["dubai"]),
    (
        "Asia/Kolkata",
        &[
            "india",
            "mumbai",
            "delhi",
            "new delhi",
            "kolkata",
            "bangalore",
            "inde",
        ],
    ),
    (
        "Asia/Shanghai",
        &["shanghai", "beijing", "pekin", "china", "chine"],
    ),
    ("Asia/Hong_Kong", &["hong kong"]),
    ("Asia/Singapore", &["singapore", "singapur", "singapour"]),
    ("Asia/Seoul", &["seoul", "seul"]),
    ("Asia/Tokyo", &["tokyo", "tokio", "japan", "japon", "osaka"]),
    ("Australia/Sydney", &["sydney", "sidney", "melbourne"]),
    ("UTC", &["utc", "gmt"]),
];

/// The places that words name, in their order: where each stands, and its time zone.
pub(super) fn places(words: &[Word], text: &str) -> Vec<(String, String)> {
    let mut places = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let found = ZONES.iter().find_map(|(zone, names)| {
            let ends = names.iter().filter_map(|name| phrase_end(name, words, at));
            Some((*zone, ends.max()?))
        });
        let raw = &text[words[at].start..words[at].end];
        if let Some((zone, end)) = found {
            let name = text[words[at].start..words[end - 1].end].to_owned();
            places.push((name, zone.to_owned()));
            at = end;
            continue;
        }
        let is_zone = raw.contains('/')
            && raw.starts_with(char::is_uppercase)
            && raw
                .chars()
                .all(|c| c.is_ascii_alphabetic() || "/_-".contains(c));
        if is_zone {
            places.push((raw.to_owned(), raw.to_owned()));
        }
        at += 1;
    }
    places
}

/// A time of the day such as `15:00` or `3pm`, as `HH:MM`.
pub(super) fn clock(word: &str) -> Option<String> {
    let (digits, is_afternoon) = match word.strip_suffix("pm") {
        Some(digits) => (digits, true),
        None => (word.strip_suffix("am").unwrap_or(word), false),
    };
    let (hour, minute) = match digits.split_once([':', 'h']) {
        Some((hour, "")) => (hour, "00"),
        Some(parts) => parts,
        None if digits != word => (digits, "00"),
        None => return None,
    };
    let (hour, minute): (u8, u8) = (hour.parse().ok()?, minute.parse().ok()?);
    let hour = if is_afternoon && hour < 12 {
        hour + 12
    } else {
        hour
    };
    (hour < 24 && minute < 60).then(|| format!("{hour:02}:{minute:02}"))
}
