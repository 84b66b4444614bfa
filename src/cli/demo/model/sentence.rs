//! What somebody wants: a sentence is divided into clauses, each clause is an intent with what it says about it, and a
//! clause without an intent of its own goes on with the one before.

use std::collections::BTreeMap;

use super::{
    arguments::{Gap, Role},
    intents::{INTENTS, Intent, Kind, is_held},
    words::{self, Lang, Word, words},
};
use domain::decimal::read_written;

/// What a clause says.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) amount: Option<String>,
    /// What stands for the amount and is none.
    pub(super) unread_amount: Option<String>,
    /// In the order of what somebody has and what they want.
    pub(super) currencies: Vec<&'static str>,
    pub(super) recipient: Option<String>,
    pub(super) account: Option<String>,
    /// Each as it was said, and its time zone.
    pub(super) places: Vec<(String, String)>,
    pub(super) clock: Option<String>,
    pub(super) text: Option<String>,
    pub(super) query: Option<String>,
    pub(super) number: Option<String>,
    /// Answers to questions, by property.
    answers: BTreeMap<String, String>,
}

impl Facts {
    /// What is known for a property.
    pub(super) fn get(&self, name: &str, role: Role) -> Option<String> {
        if let Some(answer) = self.answers.get(name) {
            return Some(answer.clone());
        }
        let currency = |at: usize| self.currencies.get(at).map(|code| (*code).to_owned());
        let place = |at: usize| {
            let (said, zone) = self.places.get(at)?;
            let is_zone = words::name_words(name)
                .iter()
                .any(|word| word.contains("zone") || word == "tz");
            Some(if is_zone { zone.clone() } else { said.clone() })
        };
        match role {
            Role::Amount => self.amount.clone(),
            Role::Currency => currency(0),
            Role::CurrencyTo => currency(1),
            Role::Recipient => self.recipient.clone(),
            Role::Account => self.account.clone(),
            Role::Zone => place(0),
            Role::ZoneTo => place(1),
            Role::Clock => self.clock.clone(),
            Role::Text => self.text.clone(),
            Role::Query => self.query.clone(),
            Role::Number => self.number.clone(),
            Role::Other => None,
        }
    }
}

/// Something that somebody wants done.
#[derive(Clone)]
pub(super) struct Want {
    pub(super) intent: &'static Intent,
    pub(super) facts: Facts,
    /// It speaks of money, and not of sending it now.
    pub(super) is_held: bool,
    lang: Lang,
    /// Where its clauses stand.
    range: (usize, usize),
}

/// Words between a request and its object.
const FILLERS: &[&str] = &[
    "the", "a", "an", "our", "my", "el", "la", "los", "las", "mi", "un", "una", "le", "les", "l",
    "mon", "ma", "une", "of", "account", "cuenta", "compte", "that", "que", "saying", "please",
    "me", "moi",
];
/// Words that end a name.
const STOPS: &[&str] = &[
    "from",
    "desde",
    "depuis",
    "for",
    "por",
    "pour",
    "with",
    "con",
    "avec",
    "on",
    "in",
    "en",
    "using",
    "please",
    "s",
    "svp",
    "now",
    "ahora",
    "maintenant",
    "today",
    "hoy",
    "thanks",
    "gracias",
    "merci",
    "via",
    "sur",
    "out",
    "of",
    "as",
    "is",
    "de",
    "du",
    "to",
    "a",
    "al",
    "au",
    "about",
    "account",
    "cuenta",
    "compte",
    "favor",
];
const JOINS: &[&str] = &[
    "and", "y", "e", "et", "then", "luego", "puis", "also", "plus",
];

/// Everything that a text asks for.
pub(super) fn understand(text: &str, lang: Lang) -> Vec<Want> {
    let mut wants: Vec<Want> = Vec::new();
    for (start, end) in clauses(text) {
        // The text of a note goes to the end, whatever stands in it.
        if let Some(last) = wants.last_mut()
            && last.intent.kind == Kind::WriteNote
        {
            *last = Want::read(last.intent, text, (last.range.0, end), last.lang);
            continue;
        }
        let clause = words(&text[start..end]);
        match intent_of(&clause, &text[start..end], lang) {
            // "When it is 15:00 in Madrid, what time is it in Tokyo?"
            Some((intent, _)) if is_about_clock(wants.last(), intent) => {
                go_on(&mut wants, text, (start, end));
            }
            Some((intent, lang)) => wants.push(Want::read(intent, text, (start, end), lang)),
            None => go_on(&mut wants, text, (start, end)),
        }
    }
    // "How many dollars and pounds is 100 euro?"
    let pair = wants
        .iter()
        .find(|want| want.intent.kind == Kind::Rate && want.facts.currencies.len() == 2);
    if let Some(first) = pair.and_then(|pair| pair.facts.currencies.first()).copied() {
        let alone = wants
            .iter_mut()
            .filter(|want| want.intent.kind == Kind::Rate);
        for want in alone.filter(|want| want.facts.currencies.len() == 1) {
            want.facts.currencies.insert(0, first);
        }
    }
    let is_polite = |want: &Want| matches!(want.intent.kind, Kind::Greeting | Kind::Thanks);
    if wants.iter().any(|want| !is_polite(want)) {
        wants.retain(|want| !is_polite(want));
    }
    wants
}

/// Whether a clause says where else a time of the day is asked for.
fn is_about_clock(last: Option<&Want>, intent: &Intent) -> bool {
    let is_time = |want: &Want| want.intent.kind == Kind::Time && want.facts.clock.is_some();
    intent.kind == Kind::Time && last.is_some_and(is_time)
}

/// A clause without an intent of its own: one more of the same kind, or the rest of the one before.
fn go_on(wants: &mut Vec<Want>, text: &str, (start, end): (usize, usize)) {
    let Some(last) = wants.last_mut() else { return };
    let joined = Want::read(last.intent, text, (last.range.0, end), last.lang);
    let mut more = Want::read(last.intent, text, (start, end), last.lang);
    match last.intent.kind {
        Kind::Rate => match more.facts.currencies.as_slice() {
            [] => {}
            [only] if last.facts.currencies.len() == 2 => {
                more.facts.currencies = vec![last.facts.currencies[0], *only];
                more.facts.amount.clone_from(&last.facts.amount);
                more.facts
                    .unread_amount
                    .clone_from(&last.facts.unread_amount);
                wants.push(more);
            }
            [_] => *last = joined,
            _ => wants.push(more),
        },
        Kind::Time if !more.facts.places.is_empty() && last.facts.clock.is_none() => {
            if last.facts.places.is_empty() {
                *last = joined;
            } else {
                wants.push(more);
            }
        }
        Kind::Transfer | Kind::Invoice => {
            let has_amount =
                |facts: &Facts| facts.amount.is_some() || facts.unread_amount.is_some();
            let is_whole = has_amount(&last.facts) && last.facts.recipient.is_some();
            if is_whole && has_amount(&more.facts) {
                if more.facts.currencies.is_empty() {
                    more.facts.currencies.clone_from(&last.facts.currencies);
                }
                more.is_held |= last.is_held;
                wants.push(more);
            } else {
                *last = joined;
            }
        }
        Kind::Time | Kind::FindNotes => *last = joined,
        _ => {}
    }
}

/// Where the clauses of a text are: between signs, and words such as "and". What is quoted is not divided.
fn clauses(text: &str) -> Vec<(usize, usize)> {
    let quoted = quoted(text).map(|(start, end)| start..end);
    let mut cuts: Vec<(usize, usize)> = Vec::new();
    for (at, c) in text.char_indices() {
        let next = text[at + c.len_utf8()..].chars().next();
        let ends = match c {
            '\n' | ';' | '?' | '!' | '¿' | '¡' | '&' => true,
            '.' | ',' => next.is_none_or(char::is_whitespace),
            _ => false,
        };
        if ends {
            cuts.push((at, at + c.len_utf8()));
        }
    }
    let joins = words(text)
        .into_iter()
        .filter(|word| JOINS.contains(&word.folded.as_str()));
    cuts.extend(joins.map(|word| (word.start, word.end)));
    cuts.retain(|(at, _)| quoted.as_ref().is_none_or(|quoted| !quoted.contains(at)));
    cuts.sort_unstable();
    cuts.push((text.len(), text.len()));
    let mut start = 0;
    let mut clauses = Vec::new();
    for (end, next) in cuts {
        if end > start && !words(&text[start..end]).is_empty() {
            clauses.push((start, end));
        }
        start = start.max(next);
    }
    clauses
}

/// Where the first quoted text is, without its signs.
fn quoted(text: &str) -> Option<(usize, usize)> {
    [('"', '"'), ('“', '”'), ('«', '»')]
        .into_iter()
        .find_map(|(open, close)| {
            let start = text.find(open)? + open.len_utf8();
            let length = text[start..].find(close)?;
            Some((start, start + length))
        })
}

/// What a clause is about, and the language of the words that say so.
fn intent_of(clause: &[Word], text: &str, lang: Lang) -> Option<(&'static Intent, Lang)> {
    let currencies = clause
        .iter()
        .filter(|word| words::currency(&text[word.start..word.end]).is_some())
        .count();
    let has_amount = clause.iter().any(|word| words::is_number(&word.folded));
    let mut best: Option<(usize, &Intent)> = None;
    for intent in INTENTS {
        let mut score = 2 * intent.count(clause);
        score += match intent.kind {
            Kind::Rate if currencies >= 2 => 3,
            Kind::Time
                if clause
                    .iter()
                    .any(|word| words::clock(&word.folded).is_some()) =>
            {
                1
            }
            Kind::Rate if currencies == 1 && asks_how_many(clause) => 2,
            Kind::Transfer | Kind::Invoice if score > 0 && has_amount => 4,
            // "Notes" alone says less than "write a note" does.
            Kind::WriteNote | Kind::DeleteNote if score > 0 => 1,
            Kind::Capabilities if score > 0 && clause.len() > 2 => 1,
            _ => 0,
        };
        if score > best.map_or(0, |(score, _)| score) {
            best = Some((score, intent));
        }
    }
    let starts_note = ["note", "nota"].contains(&clause.first()?.folded.as_str())
        && text[clause[0].end..].trim_start().starts_with(':');
    let note = INTENTS.iter().find(|intent| intent.kind == Kind::WriteNote);
    let start_of = |intent: &Intent| intent.find(clause).map(|(start, _, _)| start);
    // What stands in a note is no request, even if it says that somebody is to be paid.
    let is_note = note.and_then(start_of).is_some_and(|start| {
        best.and_then(|(_, intent)| start_of(intent))
            .is_none_or(|other| start <= other)
    });
    let found = if starts_note || is_note {
        note
    } else {
        best.map(|(_, intent)| intent)
    };
    let intent = found?;
    Some((
        intent,
        intent.find(clause).map_or(lang, |(_, _, said)| said),
    ))
}

fn asks_how_many(clause: &[Word]) -> bool {
    [
        "how many", "how much", "cuantos", "cuantas", "cuanto", "combien",
    ]
    .iter()
    .any(|phrase| words::find_phrase(phrase, clause).is_some())
}

impl Want {
    fn read(intent: &'static Intent, text: &str, range: (usize, usize), lang: Lang) -> Self {
        let clause = Clause {
            text: &text[range.0..range.1],
            words: words(&text[range.0..range.1]),
            lang,
        };
        let is_money = matches!(intent.kind, Kind::Transfer | Kind::Invoice);
        Self {
            intent,
            facts: clause.facts(intent),
            // What stands before the clause may hold it as well: "Wait, don't: pay acme".
            is_held: is_money && is_held(&clause.words, lang),
            lang,
            range,
        }
    }

    /// The same with the answer to what it lacked; `None` if the text is no answer to that.
    pub(super) fn with_answer(&self, gap: &Gap, text: &str, lang: Lang) -> Option<Self> {
        let clause = Clause {
            text,
            words: words(text),
            lang,
        };
        let mut want = self.clone();
        let facts = &mut want.facts;
        let whole = text.trim().trim_end_matches(['.', '!', '?']).trim();
        match gap.role {
            Role::Amount => {
                clause.number()?;
                clause.add_amount(facts);
                if facts.currencies.is_empty() {
                    facts.currencies = clause.currencies();
                }
            }
            Role::Currency => facts
                .currencies
                .splice(
                    ..facts.currencies.len().min(1),
                    [*clause.currencies().first()?],
                )
                .for_each(drop),
            Role::CurrencyTo => {
                facts.currencies = vec![*facts.currencies.first()?, *clause.currencies().last()?];
            }
            Role::Recipient => facts.recipient = Some(clause.name_from(0)?),
            Role::Account => facts.account = Some(clause.name_from(0)?),
            Role::Zone | Role::ZoneTo => {
                let places = words::places(&clause.words, text);
                if places.is_empty() {
                    return None;
                }
                facts.places.extend(places);
            }
            Role::Clock => facts.clock = Some(clause.clock()?),
            Role::Number => facts.number = Some(clause.amount()?.1),
            Role::Text | Role::Query | Role::Other => {
                facts.answers.insert(gap.name.clone(), whole.to_owned());
            }
        }
        (!whole.is_empty()).then_some(want)
    }
}

struct Clause<'a> {
    text: &'a str,
    words: Vec<Word>,
    lang: Lang,
}

impl Clause<'_> {
    fn raw(&self, word: &Word) -> &str {
        &self.text[word.start..word.end]
    }

    fn currency_at(&self, at: usize) -> Option<&'static str> {
        words::currency(self.raw(self.words.get(at)?))
    }

    /// The first number: where it stands, and as it was written.
    fn number(&self) -> Option<(usize, String)> {
        let at = self
            .words
            .iter()
            .position(|word| words::is_number(&word.folded))?;
        let Word { start, end, .. } = self.words[at];
        // A sign before it belongs to it, also one before the sign of the currency; a word before a comma does not.
        let before = self.text[..start].trim_end_matches(['€', '$', '£', '¥', ' ']);
        let is_sign = |c: char| matches!(c, '-' | '−' | '.' | ',');
        let is_apart = |text: &str| !text.ends_with(char::is_alphanumeric);
        let sign = before
            .strip_suffix(is_sign)
            .filter(|before| is_apart(before));
        let start = sign.map_or(start, str::len);
        Some((at, self.text[start..end].to_owned()))
    }

    /// The first amount: where it stands, and what it is. No other number stands in for one that nobody can read.
    fn amount(&self) -> Option<(usize, String)> {
        let (at, said) = self.number()?;
        let digits = read_written(&said).ok()?;
        (!digits.starts_with('-')).then_some((at, digits))
    }

    /// The amount as a fact, or that there is none that can be read.
    fn add_amount(&self, facts: &mut Facts) {
        facts.amount = self.amount().map(|(_, amount)| amount);
        let said = self.number().map(|(_, said)| said);
        facts.unread_amount = said.filter(|_| facts.amount.is_none());
    }

    fn clock(&self) -> Option<String> {
        self.words
            .iter()
            .find_map(|word| words::clock(&word.folded))
    }

    fn currencies(&self) -> Vec<&'static str> {
        let found = (0..self.words.len()).filter_map(|at| self.currency_at(at));
        let mut currencies: Vec<&'static str> = Vec::new();
        for code in found {
            if !currencies.contains(&code) {
                currencies.push(code);
            }
        }
        currencies
    }

    /// What is had, then what is wanted: an amount stands with the first, "how many" with the second.
    fn pair(&self) -> Vec<&'static str> {
        let mut currencies = self.currencies();
        let with_amount = self
            .number()
            .and_then(|(at, _)| self.currency_of_amount(at));
        let counted = ["how many", "cuantos", "cuantas", "combien de", "combien d"]
            .iter()
            .find_map(|phrase| {
                let (_, end) = words::find_phrase(phrase, &self.words)?;
                self.currency_at(end)
            });
        if currencies.len() == 2
            && (with_amount == Some(currencies[1])
                || (with_amount.is_none() && counted == Some(currencies[0])))
        {
            currencies.swap(0, 1);
        }
        currencies.truncate(2);
        currencies
    }

    fn currency_of_amount(&self, at: usize) -> Option<&'static str> {
        let behind = self
            .words
            .get(at + 1)
            .is_some_and(|word| ["of", "de", "d"].contains(&word.folded.as_str()));
        self.currency_at(at + 1 + usize::from(behind))
            .or_else(|| self.currency_at(at.checked_sub(1)?))
    }

    fn facts(&self, intent: &Intent) -> Facts {
        let mut facts = Facts {
            currencies: self.pair(),
            ..Facts::default()
        };
        let said = intent.find(&self.words);
        match intent.kind {
            Kind::Transfer | Kind::Invoice => {
                if let Some((at, _)) = self.number() {
                    facts.currencies.splice(0..0, self.currency_of_amount(at));
                }
                self.add_amount(&mut facts);
                facts.currencies.truncate(1);
                facts.recipient = self.recipient(intent.kind, said.map(|(_, end, _)| end));
                facts.account = self.account();
            }
            Kind::Rate => self.add_amount(&mut facts),
            Kind::Time => {
                facts.places = words::places(&self.words, self.text);
                facts.clock = self.clock();
            }
            Kind::WriteNote => facts.text = self.note_text(said.map_or(1, |(_, end, _)| end)),
            Kind::FindNotes => facts.query = self.query(),
            Kind::DeleteNote => facts.number = self.amount().map(|(_, number)| number),
            _ => {}
        }
        facts
    }

    /// A name from a word on, up to a word or a sign that ends it.
    fn name_from(&self, start: usize) -> Option<String> {
        let skipped = |at: &usize| {
            let word = self.words[*at].folded.as_str();
            FILLERS.contains(&word) || STOPS.contains(&word)
        };
        let first = (start..self.words.len()).find(|at| !skipped(at))?;
        let mut last = None;
        for at in first..self.words.len() {
            let word = &self.words[at];
            let is_apart = last.is_some_and(|last: usize| {
                self.text[self.words[last].end..word.start].contains([',', ';', ':', '(', '\n'])
            });
            let ends = STOPS.contains(&word.folded.as_str())
                || self.currency_at(at).is_some()
                || words::is_number(&word.folded);
            if ends || is_apart {
                break;
            }
            last = Some(at);
        }
        let last = last?;
        Some(self.text[self.words[first].start..self.words[last].end].to_owned())
    }

    fn recipient(&self, kind: Kind, behind_verb: Option<usize>) -> Option<String> {
        let prepositions: &[&str] = match (self.lang, kind) {
            (Lang::En, Kind::Invoice) => &["to", "for"],
            (Lang::En, _) => &["to"],
            (Lang::Es, _) => &["a", "al", "para"],
            (Lang::Fr, _) => &["a", "au", "aux", "pour"],
        };
        let marked = (0..self.words.len())
            .filter(|at| prepositions.contains(&self.words[*at].folded.as_str()));
        let named = marked.into_iter().find_map(|at| self.name_at(at + 1));
        named.or_else(|| self.name_at(behind_verb.unwrap_or_default()))
    }

    /// A name that begins right here, articles left out.
    fn name_at(&self, start: usize) -> Option<String> {
        let articles = |at: &usize| FILLERS.contains(&self.words[*at].folded.as_str());
        let first = (start..self.words.len()).find(|at| !articles(at))?;
        let word = &self.words[first];
        let is_name = !STOPS.contains(&word.folded.as_str())
            && self.currency_at(first).is_none()
            && !words::is_number(&word.folded);
        is_name.then(|| self.name_from(first)).flatten()
    }

    /// The account that money is to come from, if one is named.
    fn account(&self) -> Option<String> {
        let markers = [
            "from",
            "desde",
            "depuis",
            "de la cuenta",
            "de mi cuenta",
            "du compte",
        ];
        markers.iter().find_map(|marker| {
            let (_, end) = words::find_phrase(marker, &self.words)?;
            self.name_at(end)
        })
    }

    /// What is to be written: what is quoted, or what stands behind the request.
    fn note_text(&self, end: usize) -> Option<String> {
        if let Some((start, end)) = quoted(self.text) {
            return Some(self.text[start..end].to_owned());
        }
        let links = [
            "that", "que", "saying", "with", "text", "texto", "texte", "diciendo", "disant", "de",
            "the", "con", "el", "le", "avec", "me", "moi",
        ];
        let behind = self.words.iter().skip(end);
        let first = behind
            .into_iter()
            .find(|word| !links.contains(&word.folded.as_str()))?;
        let text = self.text[first.start..]
            .trim()
            .trim_end_matches(['"', '”', '»'])
            .trim();
        Some(text.to_owned())
    }

    /// What notes are searched for: what is quoted, or what stands behind a word such as "about".
    fn query(&self) -> Option<String> {
        if let Some((start, end)) = quoted(self.text) {
            return Some(self.text[start..end].to_owned());
        }
        let markers = [
            "about",
            "containing",
            "that contain",
            "with",
            "mentioning",
            "sobre",
            "que contengan",
            "con",
            "sur",
            "a propos de",
            "qui contiennent",
            "avec",
            "for",
        ];
        markers.iter().find_map(|marker| {
            let (_, end) = words::find_phrase(marker, &self.words)?;
            let first = self.words.get(end)?;
            let last = self.words.last()?;
            Some(self.text[first.start..last.end].to_owned())
        })
    }
}
