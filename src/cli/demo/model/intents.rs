//! The table of what the demo model understands: the words of a sentence, and the words of a tool that does it.

use super::{
    arguments::{Role, roles},
    conversation::Tool,
    words::{Lang, Word, find_phrase, fold, name_words},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Transfer,
    Rate,
    History,
    Balance,
    List,
    Invoice,
    Time,
    WriteNote,
    DeleteNote,
    FindNotes,
    Capabilities,
    Greeting,
    Thanks,
    Leave,
}

/// What a tool does with what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Read,
    Write,
    Delete,
}

#[derive(Debug)]
pub(super) struct Intent {
    pub(super) kind: Kind,
    /// Phrases of a sentence in English, Spanish and French; see [`find_phrase`].
    pub(super) said: [&'static [&'static str]; 3],
    /// Words in the name or the description of a tool.
    tool: &'static [&'static str],
    effect: Effect,
    /// What the arguments of the tool must have a place for.
    needs: &'static [Role],
}

/// Of two that fit equally well the first one is meant.
pub(super) const INTENTS: &[Intent] = &[
    Intent {
        kind: Kind::Transfer,
        said: [
            &["pay", "send", "transfer", "wire", "remit", "payment"],
            &[
                "paga",
                "pagar",
                "pague",
                "pagale",
                "pago",
                "transfiere",
                "transferir",
                "transfiera",
                "envia",
                "enviar",
                "envie",
                "manda",
                "transferencia",
            ],
            &[
                "paie",
                "paye",
                "payer",
                "payez",
                "paiement",
                "vire",
                "virer",
                "virez",
                "virement",
                "envoie",
                "envoyer",
                "envoyez",
                "transfere",
                "transferer",
                "transferez",
                "verse",
                "verser",
                "versez",
            ],
        ],
        tool: &[
            "send",
            "transfer",
            "transfers",
            "pay",
            "payment",
            "wire",
            "remit",
            "money",
            "funds",
        ],
        effect: Effect::Write,
        needs: &[Role::Amount, Role::Recipient],
    },
    Intent {
        kind: Kind::Rate,
        said: [
            &[
                "rate",
                "rates",
                "exchange",
                "convert",
                "conversion",
                "worth",
                "fx",
            ],
            &[
                "cambio",
                "cotizacion",
                "convierte",
                "convertir",
                "vale",
                "valen",
            ],
            &[
                "taux",
                "change",
                "convertis",
                "convertir",
                "convertissez",
                "cours",
                "vaut",
                "valent",
            ],
        ],
        tool: &[
            "rate",
            "rates",
            "exchange",
            "fx",
            "forex",
            "convert",
            "conversion",
            "quote",
        ],
        effect: Effect::Read,
        needs: &[Role::CurrencyTo],
    },
    Intent {
        kind: Kind::Invoice,
        said: [
            &["invoice", "bill"],
            &["factura", "facturar"],
            &["facture", "facturer"],
        ],
        tool: &["invoice", "bill"],
        effect: Effect::Write,
        needs: &[Role::Amount],
    },
    Intent {
        kind: Kind::History,
        said: [
            &["transfers", "payments", "transactions", "statement"],
            &["transferencias", "pagos", "movimientos", "historial"],
            &["virements", "paiements", "transactions", "historique"],
        ],
        tool: &[
            "transfers",
            "payments",
            "transactions",
            "history",
            "statement",
        ],
        effect: Effect::Read,
        needs: &[],
    },
    Intent {
        kind: Kind::Balance,
        said: [
            &[
                "balance",
                "balances",
                "how much money",
                "how much do we have",
                "how much do i have",
            ],
            &[
                "saldo",
                "saldos",
                "cuanto dinero",
                "cuanto tenemos",
                "cuanto tengo",
                "cuanto hay",
            ],
            &[
                "solde",
                "soldes",
                "combien d argent",
                "combien avons nous",
                "combien ai-je",
                "combien avons-nous",
            ],
        ],
        tool: &["balance", "balances"],
        effect: Effect::Read,
        needs: &[],
    },
    Intent {
        kind: Kind::List,
        said: [
            &[
                "recipients",
                "beneficiaries",
                "payees",
                "who can i pay",
                "whom can i pay",
            ],
            &["destinatarios", "beneficiarios", "a quien puedo pagar"],
            &["destinataires", "beneficiaires", "qui puis-je payer"],
        ],
        tool: &["recipients", "beneficiaries", "payees"],
        effect: Effect::Read,
        needs: &[],
    },
    Intent {
        kind: Kind::List,
        said: [
            &["currencies"],
            &["monedas", "divisas"],
            &["devises", "monnaies"],
        ],
        tool: &["currencies"],
        effect: Effect::Read,
        needs: &[],
    },
    Intent {
        kind: Kind::List,
        said: [&["accounts"], &["cuentas"], &["comptes"]],
        tool: &["accounts"],
        effect: Effect::Read,
        needs: &[],
    },
    Intent {
        kind: Kind::WriteNote,
        said: [
            &[
                "write _ note",
                "add _ note",
                "take _ note",
                "make _ note",
                "keep _ note",
                "save _ note",
                "new note",
                "create _ note",
                "note that",
                "note down",
                "write down",
                "remember that",
                "remember to",
                "note to self",
            ],
            &[
                "escribe _ nota",
                "crea _ nota",
                "guarda _ nota",
                "toma nota",
                "anade _ nota",
                "nueva nota",
                "apunta",
                "apuntame",
                "anota",
                "recuerda que",
            ],
            &[
                "ecris _ note",
                "ecrivez _ note",
                "ecrire _ note",
                "prends _ note",
                "prenez _ note",
                "ajoute _ note",
                "cree _ note",
                "garde _ note",
                "nouvelle note",
                "note que",
                "notez que",
                "notez",
            ],
        ],
        tool: &["note", "notes", "memo", "nota", "notas"],
        effect: Effect::Write,
        needs: &[Role::Text],
    },
    Intent {
        kind: Kind::DeleteNote,
        said: [
            &["delete _ note", "remove _ note", "erase _ note"],
            &["borra _ nota", "elimina _ nota"],
            &["supprime _ note", "efface _ note", "supprimez _ note"],
        ],
        tool: &["note", "notes", "memo", "nota", "notas"],
        effect: Effect::Delete,
        needs: &[Role::Number],
    },
    Intent {
        kind: Kind::FindNotes,
        said: [&["notes"], &["notas"], &["notes"]],
        tool: &["note", "notes", "memo", "memos", "nota", "notas"],
        effect: Effect::Read,
        needs: &[],
    },
    Intent {
        kind: Kind::Time,
        said: [
            &["what time", "time", "clock"],
            &["que hora", "hora", "que horas"],
            &["quelle heure", "heure", "quelles heures"],
        ],
        tool: &["time", "clock", "now", "hora", "heure"],
        effect: Effect::Read,
        needs: &[Role::Zone],
    },
    Intent {
        kind: Kind::Capabilities,
        said: [
            &[
                "what can",
                "what do you",
                "what tools",
                "which tools",
                "help",
                "tools",
                "who are you",
                "what are you",
            ],
            &[
                "que puedo",
                "que puedes",
                "que sabes",
                "que herramientas",
                "herramientas",
                "ayuda",
                "quien eres",
                "que eres",
            ],
            &[
                "que puis-je",
                "que peux-tu",
                "que pouvez-vous",
                "quels outils",
                "outils",
                "aide",
                "qui es-tu",
                "qui etes-vous",
                "que sais-tu",
                "je peux utiliser",
                "je peux faire",
            ],
        ],
        tool: &[],
        effect: Effect::Read,
        needs: &[],
    },
    Intent {
        kind: Kind::Leave,
        said: [
            &[
                "never mind",
                "nevermind",
                "forget it",
                "leave it",
                "stop",
                "cancel",
            ],
            &["dejalo", "olvidalo", "cancela", "nada"],
            &[
                "laisse tomber",
                "laissez tomber",
                "oublie",
                "annule",
                "rien",
            ],
        ],
        tool: &[],
        effect: Effect::Read,
        needs: &[],
    },
    Intent {
        kind: Kind::Greeting,
        said: [
            &[
                "hello",
                "hi",
                "hey",
                "good morning",
                "good evening",
                "good afternoon",
            ],
            &[
                "hola",
                "buenos dias",
                "buenas tardes",
                "buenas noches",
                "buenas",
            ],
            &["bonjour", "bonsoir", "salut", "coucou"],
        ],
        tool: &[],
        effect: Effect::Read,
        needs: &[],
    },
    Intent {
        kind: Kind::Thanks,
        said: [
            &["thanks", "thank you", "thx", "cheers"],
            &["gracias"],
            &["merci"],
        ],
        tool: &[],
        effect: Effect::Read,
        needs: &[],
    },
];

/// Words that make a sentence about money something else than the wish to send it now.
const HELD: [&[&str]; 3] = [
    &[
        "don t", "dont", "do not", "never", "not", "did", "have you", "has", "had", "was", "were",
        "should", "could i", "can i", "may i", "how", "what", "why", "when", "who", "whom", "if",
        "tomorrow", "next", "later", "every", "monthly", "cancel", "undo", "no", "wait", "which",
    ],
    &[
        "no", "nunca", "si", "manana", "cada", "cancela", "anula", "deberia", "como", "puedo",
        "cuando", "quien", "por que", "has", "hemos", "ha", "ya", "espera", "proximo",
    ],
    &[
        "ne",
        "n",
        "pas",
        "jamais",
        "si",
        "demain",
        "chaque",
        "annule",
        "dois-je",
        "comment",
        "puis-je",
        "quand",
        "qui",
        "pourquoi",
        "as-tu",
        "avons-nous",
        "avez-vous",
        "attends",
        "prochain",
    ],
];

impl Intent {
    /// The phrase of a sentence that says it: where it ends, where it begins, and its language.
    pub(super) fn find(&self, words: &[Word]) -> Option<(usize, usize, Lang)> {
        let found = Lang::ALL.into_iter().flat_map(|lang| {
            let phrases = lang.of(&self.said).iter();
            phrases.filter_map(move |phrase| {
                let (start, end) = find_phrase(phrase, words)?;
                Some((start, end, lang))
            })
        });
        found.min_by_key(|(start, end, _)| (*start, usize::MAX - end))
    }

    /// How many of its phrases a sentence holds, in the language that has most of them.
    pub(super) fn count(&self, words: &[Word]) -> usize {
        let count = |lang: Lang| {
            let phrases = lang.of(&self.said).iter();
            phrases
                .filter(|phrase| find_phrase(phrase, words).is_some())
                .count()
        };
        Lang::ALL.into_iter().map(count).max().unwrap_or_default()
    }

    /// Whether a tool is asked for, and not an answer of the model itself.
    pub(super) fn wants_tool(&self) -> bool {
        !self.tool.is_empty()
    }

    /// The tool on offer that does it best.
    pub(super) fn choose<'a>(&self, tools: &'a [Tool], has_clock: bool) -> Option<&'a Tool> {
        let mut best: Option<(usize, &Tool)> = None;
        for tool in tools {
            let score = self.score(tool, has_clock);
            if score > best.map_or(0, |(score, _)| score) {
                best = Some((score, tool));
            }
        }
        best.map(|(_, tool)| tool)
    }

    /// How well a tool fits: a word in its name counts more than one in its description.
    fn score(&self, tool: &Tool, has_clock: bool) -> usize {
        let roles = roles(&tool.schema);
        if effect_of(tool) != self.effect || !self.needs.iter().all(|role| roles.contains(role)) {
            return 0;
        }
        let (title, server) = (name_words(&tool.title), name_words(&tool.server));
        let description = super::words::words(&tool.description);
        let count =
            |holds: &dyn Fn(&str) -> bool| self.tool.iter().filter(|word| holds(word)).count();
        let named = |names: &[String], word: &str| names.iter().any(|name| name == word);
        let score = 4 * count(&|word| named(&title, word))
            + count(&|word| named(&server, word))
            + count(&|word| description.iter().any(|known| known.folded == word));
        if score == 0 {
            return 0;
        }
        // One time of the day in several places is for a tool that takes a time.
        let takes_clock = roles.contains(&Role::Clock);
        if self.kind == Kind::Time && takes_clock {
            return if has_clock { score + 10 } else { 0 };
        }
        score
    }
}

/// Whether somebody who speaks of money wants none of it to move now.
pub(super) fn is_held(words: &[Word], lang: Lang) -> bool {
    let phrases = lang.of(&HELD).iter();
    phrases
        .into_iter()
        .any(|phrase| find_phrase(phrase, words).is_some())
}

const READING: &[&str] = &[
    "get", "list", "find", "search", "show", "read", "fetch", "lookup", "view", "current",
    "convert", "check", "describe", "count", "query", "history", "status", "your", "lists", "gets",
    "shows", "finds", "returns", "what", "tells",
];
const WRITING: &[&str] = &[
    "send",
    "pay",
    "transfer",
    "wire",
    "remit",
    "make",
    "write",
    "add",
    "create",
    "new",
    "keep",
    "save",
    "store",
    "append",
    "put",
    "post",
    "issue",
    "insert",
    "submit",
    "sends",
    "pays",
    "transfers",
    "writes",
    "adds",
    "creates",
    "keeps",
    "saves",
    "stores",
    "update",
    "edit",
    "set",
    "take",
];
const DELETING: &[&str] = &[
    "delete", "remove", "erase", "drop", "cancel", "trash", "deletes", "removes", "erases",
];

/// What a tool does: the first verb in its name says so, or else the first one in its description.
fn effect_of(tool: &Tool) -> Effect {
    let described = super::words::words(&tool.description);
    let described = described.iter().map(|word| word.folded.clone());
    let words = name_words(&tool.title)
        .into_iter()
        .map(|word| fold(&word))
        .chain(described);
    let mut effects = words.filter_map(|word| {
        let word = word.as_str();
        let lists = [
            (DELETING, Effect::Delete),
            (READING, Effect::Read),
            (WRITING, Effect::Write),
        ];
        lists
            .into_iter()
            .find(|(list, _)| list.contains(&word))
            .map(|(_, effect)| effect)
    });
    effects.next().unwrap_or(Effect::Read)
}
