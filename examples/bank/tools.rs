//! What the bank offers to models. A refusal is a tool result with `isError`, in words a model can act on.

use std::{sync::Arc, time::Duration};

use rmcp::{
    Json, ServerHandler,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    schemars::{self, JsonSchema},
    tool, tool_handler, tool_router,
};
use serde::{Deserialize, Serialize};

use super::{
    books::{Account, Books, Draft, Invoice, Payment, RECIPIENTS, Transfer},
    money::{self, Currency},
};

/// The server. Cheap to clone: each session has one, all share the books.
#[derive(Clone)]
pub struct Bank {
    books: Arc<Books>,
    /// How long an answer lingers after the execution.
    delay: Duration,
    router: ToolRouter<Self>,
}

#[derive(Serialize, JsonSchema)]
pub struct Currencies {
    currencies: Vec<CurrencyInfo>,
}

#[derive(Serialize, JsonSchema)]
pub struct CurrencyInfo {
    code: Currency,
    name: String,
    /// Digits after the decimal point.
    decimals: u32,
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Currency to sell.
    from: Currency,
    /// Currency to buy.
    to: Currency,
}

#[derive(Serialize, JsonSchema)]
pub struct Quote {
    from: Currency,
    to: Currency,
    /// How much of `to` one of `from` buys, as decimal text.
    rate: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Which {
    /// Id of one account, as in `list_accounts`; every account's balance without it.
    #[serde(default)]
    account: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub struct Accounts {
    accounts: Vec<Account>,
}

#[derive(Serialize, JsonSchema)]
pub struct Transfers {
    transfers: Vec<Transfer>,
}

#[derive(Serialize, JsonSchema)]
pub struct Recipients {
    recipients: Vec<Recipient>,
}

#[derive(Serialize, JsonSchema)]
pub struct Recipient {
    id: String,
    name: String,
    /// The currency that the recipient prefers.
    currency: Currency,
}

#[tool_router(router = routes)]
impl Bank {
    pub fn new(books: Arc<Books>, delay: Duration) -> Self {
        Self {
            books,
            delay,
            router: Self::routes(),
        }
    }

    /// The currencies that this bank deals in, with their number of decimals.
    #[tool(annotations(
        title = "Currencies",
        read_only_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn list_currencies(&self) -> Result<Json<Currencies>, String> {
        let currencies = Currency::ALL
            .map(|code| CurrencyInfo {
                code,
                name: code.name().to_owned(),
                decimals: code.digits(),
            })
            .into();
        self.answer(
            self.books
                .look("list_currencies", (), Currencies { currencies }),
        )
        .await
    }

    /// The bank's exchange rate: how much of one currency a unit of another buys.
    #[tool(annotations(
        title = "Exchange rate",
        read_only_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn get_exchange_rate(
        &self,
        Parameters(pair): Parameters<Pair>,
    ) -> Result<Json<Quote>, String> {
        let quote = Quote {
            from: pair.from,
            to: pair.to,
            rate: money::rate(pair.from, pair.to),
        };
        self.answer(self.books.look("get_exchange_rate", pair, quote))
            .await
    }

    /// Our accounts at this bank, with their ids, currencies and balances.
    #[tool(annotations(
        title = "Accounts",
        read_only_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn list_accounts(&self) -> Result<Json<Accounts>, String> {
        self.answer(self.books.accounts().map(|accounts| Accounts { accounts }))
            .await
    }

    /// What is on our accounts: on one of them, or on all.
    #[tool(annotations(
        title = "Balances",
        read_only_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn get_balances(
        &self,
        Parameters(which): Parameters<Which>,
    ) -> Result<Json<Accounts>, String> {
        let balances = self.books.balances(which.account.as_deref());
        self.answer(balances.map(|accounts| Accounts { accounts }))
            .await
    }

    /// The transfers made so far, oldest first.
    #[tool(annotations(
        title = "Transfers",
        read_only_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn list_transfers(&self) -> Result<Json<Transfers>, String> {
        self.answer(
            self.books
                .transfers()
                .map(|transfers| Transfers { transfers }),
        )
        .await
    }

    /// Whom money can be sent to, with their ids.
    #[tool(annotations(
        title = "Recipients",
        read_only_hint = true,
        idempotent_hint = true,
        open_world_hint = false
    ))]
    async fn list_recipients(&self) -> Result<Json<Recipients>, String> {
        let recipients = RECIPIENTS
            .map(|(id, name, currency)| Recipient {
                id: id.to_owned(),
                name: name.to_owned(),
                currency,
            })
            .into();
        self.answer(
            self.books
                .look("list_recipients", (), Recipients { recipients }),
        )
        .await
    }

    /// Sends money from one of our accounts to a recipient, at once and for good. The recipient gets exactly
    /// the amount named; an account in another currency is charged by the exchange rate.
    #[tool(annotations(
        title = "Send money",
        read_only_hint = false,
        destructive_hint = true,
        idempotent_hint = false,
        open_world_hint = true
    ))]
    async fn send_money(
        &self,
        Parameters(payment): Parameters<Payment>,
    ) -> Result<Json<Transfer>, String> {
        self.answer(self.books.send(&payment)).await
    }

    /// Writes an invoice to a customer. No money moves.
    #[tool(annotations(
        title = "Create invoice",
        read_only_hint = false,
        destructive_hint = false,
        idempotent_hint = false,
        open_world_hint = false
    ))]
    async fn create_invoice(
        &self,
        Parameters(draft): Parameters<Draft>,
    ) -> Result<Json<Invoice>, String> {
        self.answer(self.books.invoice(&draft)).await
    }

    async fn answer<T>(&self, done: Result<T, String>) -> Result<Json<T>, String> {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        done.map(Json)
    }
}

#[tool_handler(
    router = self.router,
    name = "bank",
    instructions = "A small bank. Amounts are decimal text in the currency's own digits; ids come from the list tools."
)]
impl ServerHandler for Bank {}
