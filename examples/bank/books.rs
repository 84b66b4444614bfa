//! The bank's books: accounts, transfers, invoices, and the ledger of every execution.
//!
//! One lock, one order: work is done, written to the ledger file, and undone if the file cannot be written. So the
//! file never lacks what an answer told.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    path::Path,
    sync::Mutex,
};

use anyhow::Context;
use domain::clock::Clock;
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::format_description::well_known::Rfc3339;

use super::money::{Currency, Money};

/// An account at its opening: id, name, balance in minor units, currency.
const ACCOUNTS: [(&str, &str, i64, Currency); 4] = [
    ("current", "Current account", 524_000, Currency::Eur),
    ("savings", "Savings account", 1_850_000, Currency::Eur),
    ("travel", "Travel account", 132_050, Currency::Usd),
    ("osaka", "Osaka office", 480_000, Currency::Jpy),
];

pub const RECIPIENTS: [(&str, &str, Currency); 4] = [
    ("acme", "Acme Tools GmbH", Currency::Eur),
    ("harbour", "Harbour Rent Ltd", Currency::Gbp),
    ("sato", "Sato Design", Currency::Jpy),
    ("delta", "Delta Hosting Inc", Currency::Usd),
];

pub struct Books {
    inner: Mutex<(State, Option<File>)>,
}

#[derive(Default)]
struct State {
    spent: BTreeMap<String, i64>,
    transfers: Vec<Transfer>,
    invoices: Vec<Invoice>,
    entries: Vec<Entry>,
}

/// One execution of one tool. What was refused is in here too: it was executed.
#[derive(Clone, Serialize, Deserialize)]
pub struct Entry {
    pub number: usize,
    pub at: String,
    pub tool: String,
    pub arguments: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

#[derive(Clone, Serialize, JsonSchema)]
pub struct Account {
    pub id: String,
    pub name: String,
    pub currency: Currency,
    /// Decimal text, such as "5240.00".
    pub balance: String,
}

/// What an amount looks like, in any currency: a client refuses `12,50` before anybody is asked to consent.
const AMOUNT: &str = r"^[0-9]+(\.[0-9]+)?$";

/// Money to send.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Payment {
    /// Id of one of our accounts, as in `list_accounts`.
    pub from_account: String,
    /// Id of a recipient, as in `list_recipients`.
    pub to: String,
    /// How much the recipient gets, as decimal text: "12.50".
    #[schemars(regex(pattern = AMOUNT))]
    pub amount: String,
    pub currency: Currency,
}

#[derive(Clone, Serialize, JsonSchema)]
pub struct Transfer {
    pub id: String,
    pub at: String,
    #[serde(flatten)]
    pub payment: Payment,
    /// What the account was charged, in its own currency.
    pub charged: String,
    pub charged_currency: Currency,
}

/// An invoice to write.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    /// Who is to pay.
    pub customer: String,
    /// Decimal text: "12.50".
    #[schemars(regex(pattern = AMOUNT))]
    pub amount: String,
    pub currency: Currency,
}

#[derive(Clone, Serialize, JsonSchema)]
pub struct Invoice {
    pub id: String,
    pub at: String,
    #[serde(flatten)]
    pub draft: Draft,
}

impl Books {
    /// New books, or those that a ledger file tells.
    pub fn open(ledger: Option<&Path>) -> anyhow::Result<Self> {
        let mut state = State::default();
        let Some(path) = ledger else {
            return Ok(Self {
                inner: Mutex::new((state, None)),
            });
        };
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)?;
        for (number, line) in BufReader::new(&file).lines().enumerate() {
            let replayed = serde_json::from_str(&line?)
                .map_err(anyhow::Error::from)
                .and_then(|entry| state.replay(entry));
            replayed.with_context(|| format!("{}, line {}", path.display(), number + 1))?;
        }
        Ok(Self {
            inner: Mutex::new((state, Some(file))),
        })
    }

    pub fn accounts(&self) -> Result<Vec<Account>, String> {
        self.execute(
            "list_accounts",
            Value::Null,
            |state, _| Ok(state.accounts()),
        )
    }

    /// One account's balance, or every account's.
    pub fn balances(&self, account: Option<&str>) -> Result<Vec<Account>, String> {
        self.execute(
            "get_balances",
            serde_json::json!({ "account": account }),
            |state, _| {
                let mut accounts = state.accounts();
                if let Some(id) = account {
                    find_account(id)?;
                    accounts.retain(|account| account.id == id);
                }
                Ok(accounts)
            },
        )
    }

    pub fn transfers(&self) -> Result<Vec<Transfer>, String> {
        self.execute("list_transfers", Value::Null, |state, _| {
            Ok(state.transfers.clone())
        })
    }

    pub fn send(&self, payment: &Payment) -> Result<Transfer, String> {
        self.execute("send_money", payment, |state, at| state.send(payment, at))
    }

    pub fn invoice(&self, draft: &Draft) -> Result<Invoice, String> {
        self.execute("create_invoice", draft, |state, at| {
            state.invoice(draft, at)
        })
    }

    /// A lookup that touches no money; it is in the ledger as well.
    pub fn look<T>(&self, tool: &str, arguments: impl Serialize, answer: T) -> Result<T, String> {
        self.execute(tool, arguments, |_, _| Ok(answer))
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.inner.lock().expect("no work panics").0.entries.clone()
    }

    /// Does the work and writes it down, or undoes it. Nothing is copied but the four balances, so that the thousandth
    /// execution takes no longer than the first.
    fn execute<T>(
        &self,
        tool: &str,
        arguments: impl Serialize,
        work: impl FnOnce(&mut State, &str) -> Result<T, String>,
    ) -> Result<T, String> {
        let arguments = serde_json::to_value(arguments).map_err(|error| error.to_string())?;
        let mut inner = self.inner.lock().expect("no work panics");
        let (state, file) = &mut *inner;
        let before = (
            state.spent.clone(),
            state.transfers.len(),
            state.invoices.len(),
        );
        let at = Clock::System
            .now()
            .format(&Rfc3339)
            .expect("a time of this age can be written");
        let done = work(state, &at);
        let refused = done.as_ref().err().cloned();
        let entry = Entry {
            number: state.entries.len() + 1,
            at,
            tool: tool.to_owned(),
            arguments,
            refused,
        };
        if let Some(file) = file
            && let Err(error) = write_line(file, &entry)
        {
            let (spent, transfers, invoices) = before;
            state.spent = spent;
            state.transfers.truncate(transfers);
            state.invoices.truncate(invoices);
            return Err(format!("the ledger cannot be written: {error}"));
        }
        state.entries.push(entry);
        done
    }
}

impl State {
    fn accounts(&self) -> Vec<Account> {
        let balance = |id: &str, minor, currency| {
            let spent = self.spent.get(id).copied().unwrap_or_default();
            Money {
                minor: minor - spent,
                currency,
            }
            .to_string()
        };
        ACCOUNTS
            .iter()
            .map(|&(id, name, minor, currency)| Account {
                id: id.to_owned(),
                name: name.to_owned(),
                currency,
                balance: balance(id, minor, currency),
            })
            .collect()
    }

    fn send(&mut self, payment: &Payment, at: &str) -> Result<Transfer, String> {
        let (id, opening, currency) = find_account(&payment.from_account)?;
        if !RECIPIENTS
            .iter()
            .any(|(recipient, ..)| *recipient == payment.to)
        {
            return Err(format!(
                "there is no recipient {:?}; list_recipients names them",
                payment.to
            ));
        }
        let charged = Money::parse(&payment.amount, payment.currency)?.to(currency);
        let spent = self.spent.entry(id.to_owned()).or_default();
        if opening - *spent < charged.minor {
            return Err(format!("account {id} does not hold {charged} {currency}"));
        }
        *spent += charged.minor;
        let transfer = Transfer {
            id: format!("transfer-{}", self.transfers.len() + 1),
            at: at.to_owned(),
            payment: payment.clone(),
            charged: charged.to_string(),
            charged_currency: currency,
        };
        self.transfers.push(transfer.clone());
        Ok(transfer)
    }

    fn invoice(&mut self, draft: &Draft, at: &str) -> Result<Invoice, String> {
        Money::parse(&draft.amount, draft.currency)?;
        if draft.customer.trim().is_empty() {
            return Err("customer must not be empty".to_owned());
        }
        let id = format!("invoice-{}", self.invoices.len() + 1);
        let invoice = Invoice {
            id,
            at: at.to_owned(),
            draft: draft.clone(),
        };
        self.invoices.push(invoice.clone());
        Ok(invoice)
    }

    /// Does again what the ledger says was done.
    fn replay(&mut self, entry: Entry) -> anyhow::Result<()> {
        if entry.refused.is_none() {
            let done = match entry.tool.as_str() {
                "send_money" => self
                    .send(&Payment::deserialize(&entry.arguments)?, &entry.at)
                    .map(drop),
                "create_invoice" => self
                    .invoice(&Draft::deserialize(&entry.arguments)?, &entry.at)
                    .map(drop),
                _ => Ok(()),
            };
            done.map_err(anyhow::Error::msg)?;
        }
        self.entries.push(entry);
        Ok(())
    }
}

fn find_account(id: &str) -> Result<(&'static str, i64, Currency), String> {
    let found = ACCOUNTS.iter().find(|(account, ..)| *account == id);
    found
        .map(|&(id, _, opening, currency)| (id, opening, currency))
        .ok_or_else(|| format!("there is no account {id:?}; list_accounts names them"))
}

fn write_line(file: &mut File, entry: &Entry) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payment(amount: &str) -> Payment {
        let (from_account, to) = ("current".to_owned(), "acme".to_owned());
        Payment {
            from_account,
            to,
            amount: amount.to_owned(),
            currency: Currency::Usd,
        }
    }

    #[test]
    fn money_sent_is_charged_in_the_accounts_currency() {
        let books = Books::open(None).expect("new books");
        let transfer = books.send(&payment("108.50")).expect("there is enough");
        assert_eq!(
            (transfer.charged.as_str(), transfer.charged_currency),
            ("100.00", Currency::Eur)
        );
        assert_eq!(
            books.balances(Some("current")).expect("it exists")[0].balance,
            "5140.00"
        );
    }

    #[test]
    fn a_refusal_moves_nothing_and_is_in_the_ledger() {
        let books = Books::open(None).expect("new books");
        let refused = books.send(&payment("1000000")).err().expect("too much");
        assert_eq!(refused, "account current does not hold 921658.99 EUR");
        assert_eq!(books.entries()[0].refused, Some(refused));
        assert_eq!(
            books.balances(Some("current")).expect("it exists")[0].balance,
            "5240.00"
        );
    }

    #[test]
    fn books_opened_again_remember_every_execution() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("ledger.jsonl");
        let books = Books::open(Some(&path)).expect("new books");
        books.send(&payment("108.50")).expect("there is enough");
        books.send(&payment("nonsense")).err().expect("refused");
        drop(books);

        let again = Books::open(Some(&path)).expect("the same books");
        assert_eq!(again.entries().len(), 2);
        assert_eq!(
            again.transfers().expect("they can be listed")[0].id,
            "transfer-1"
        );
        assert_eq!(
            again.balances(Some("current")).expect("it exists")[0].balance,
            "5140.00"
        );
    }
}
