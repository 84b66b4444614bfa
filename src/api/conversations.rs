//! Conversations and their messages.

use std::sync::Arc;

use axum::{
    extract::{OriginalUri, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::json;

use super::{
    agents::only_agent,
    extract::{Caller, Json, Located, MAX_TEXT, Path, Query, check_text, created, located},
    once::mark_replayed,
    paging::{check_limit, default_limit, split_page},
    problem::{Problem, is_openai_sdk},
    request_key::{self, Keyed},
};
use crate::app::{
    self, App,
    chat::conversations::{ListedConversation, MessageInput, MessageSelection, PostedMessage},
};
use domain::{
    error::Error,
    ids::{AttachmentId, ConversationId, MessageId},
    message::{Message, MessageRange},
    principal::Principal,
    request_key::RequestKey,
    run::{Conversation, ConversationChange, Run},
};

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ConversationRequest)]
pub(super) struct NewConversation {
    /// The agent's id; may be left out when there is only one.
    agent: Option<String>,
    /// Absent: made from the first message.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    title: Option<String>,
    /// What OpenAI's libraries send with a new conversation. It must be empty: the first message begins the conversation.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Object>>, max_items = 0)]
    items: Vec<IgnoredAny>,
}

/// A conversation in the shape that its reader knows.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum ConversationView {
    Own(Conversation),
    OpenAi {
        object: &'static str,
        /// In seconds since 1970.
        created_at: i64,
        metadata: EmptyObject,
        id: ConversationId,
        agent: String,
        title: String,
    },
}

#[derive(Default, Serialize)]
pub(super) struct EmptyObject {}

impl ConversationView {
    fn of(conversation: Conversation, headers: &HeaderMap) -> Self {
        if !is_openai_sdk(headers) {
            return Self::Own(conversation);
        }
        Self::OpenAi {
            object: "conversation",
            created_at: conversation.created_at.unix_timestamp(),
            metadata: EmptyObject::default(),
            id: conversation.id,
            agent: conversation.agent.to_string(),
            title: conversation.title,
        }
    }
}

/// Start a conversation with an agent.
///
/// It is the caller's alone: others do not find it.
#[utoipa::path(post, path = "/v1/conversations", operation_id = "createConversation", tag = "conversations",
    request_body = NewConversation,
    responses((status = 201, body = Conversation), (status = 409, description = "answer_not_kept"),
        (status = 429, description = "quota_exceeded")))]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    Keyed(new, key): Keyed<NewConversation>,
) -> Result<Response, Problem> {
    if !new.items.is_empty() {
        let why =
            "must be empty; send the first message with POST /v1/responses and its `conversation`";
        return Err(Problem::invalid("items", why));
    }
    let shown = |made: Conversation| {
        let id = made.id;
        created(&uri, id, ConversationView::of(made, &headers)).into_response()
    };
    if let Some(title) = &new.title {
        check_text("title", title, 200)?;
    }
    let (principal, key) = (caller.principal(), key.as_ref());
    let mut earlier = request_key::join_earlier(&app, principal, key).await?;
    if earlier.is_none() {
        let agent = match new.agent {
            Some(agent) => agent,
            None => only_agent(&app, principal).await?,
        };
        match app::chat::conversations::create(&app, principal, &agent, new.title, key).await {
            Err(Error::Repeated) => {
                earlier = request_key::join_earlier(&app, principal, key).await?;
            }
            made => {
                return Ok(shown(made?));
            }
        }
    }
    let id = earlier.ok_or(Error::Repeated)?.conversation;
    let made = app::chat::conversations::get(&app, principal, id).await?;
    let mut again = shown(made);
    mark_replayed(&mut again);
    Ok(again)
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ConversationsQuery {
    /// Only those with this agent.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
    agent: Option<String>,
    /// `children`: also the sessions that runs have started; they have a `parent_id`.
    #[param(inline)]
    include: Option<Include>,
    /// `true`: the archived ones, instead of the others.
    #[serde(default)]
    archived: bool,
    /// `true`: only the pinned ones; `false`: only the others.
    pinned: Option<bool>,
    /// Only those with all these words, in the title or in one message; at most 200 characters. The last word may be the
    /// beginning of one, and `-word` leaves out what has the word.
    #[param(min_length = 1, max_length = 200, pattern = r"\S")]
    search: Option<String>,
    /// The `next` of the page before.
    #[serde(alias = "before")]
    cursor: Option<ConversationId>,
    /// 1 to 100.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 100)]
    limit: i64,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum Include {
    Children,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct ConversationPage {
    items: Vec<ListedConversation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<ConversationId>,
}

/// The caller's conversations, the pinned ones first, then the newest.
///
/// Sessions that an agent has started are not among them unless asked for.
#[utoipa::path(get, path = "/v1/conversations", operation_id = "listConversations", tag = "conversations",
    params(ConversationsQuery), responses((status = 200, body = ConversationPage)))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(which): Query<ConversationsQuery>,
) -> Result<axum::Json<ConversationPage>, Problem> {
    let limit = check_limit(which.limit, 100)?;
    let children = matches!(which.include, Some(Include::Children));
    if let Some(words) = &which.search {
        check_text("search", words, 200)?;
    }
    let filter = app::chat::conversations::ConversationFilter {
        agent: which.agent.as_deref(),
        children,
        archived: which.archived,
        pinned: which.pinned,
        search: which.search.as_deref(),
        cursor: which.cursor,
    };
    let items = app::chat::conversations::list(&app, caller.principal(), filter, limit + 1).await?;
    let (items, next) = split_page(items, limit, |item| item.conversation.id);
    Ok(axum::Json(ConversationPage { items, next }))
}

/// One conversation.
///
/// A conversation of somebody else is not found.
#[utoipa::path(get, path = "/v1/conversations/{id}", operation_id = "getConversation", tag = "conversations",
    params(("id" = ConversationId, Path)), responses((status = 200, body = Conversation)))]
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<ConversationId>,
    headers: HeaderMap,
) -> Result<axum::Json<ConversationView>, Problem> {
    let found = app::chat::conversations::get(&app, caller.principal(), id).await?;
    Ok(axum::Json(ConversationView::of(found, &headers)))
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConversationPatch {
    /// At most 200 characters, of which the first line counts. The model does not change it any more.
    #[schema(min_length = 1, max_length = 200, pattern = r"\S")]
    title: Option<String>,
    archived: Option<bool>,
    pinned: Option<bool>,
    /// The branch to show and to go on with.
    branch: Option<i32>,
}

/// Rename, archive or pin a conversation, or switch to another branch.
///
/// What is absent stays. A branch is not switched while an answer is on its way.
#[utoipa::path(patch, path = "/v1/conversations/{id}", operation_id = "changeConversation", tag = "conversations",
    params(("id" = ConversationId, Path)), request_body = ConversationPatch,
    responses((status = 200, body = Conversation), (status = 400, description = "unknown_reference"),
        (status = 409, description = "conversation_busy")))]
pub(super) async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<ConversationId>,
    Json(patch): Json<ConversationPatch>,
) -> Result<axum::Json<Conversation>, Problem> {
    if let Some(title) = &patch.title {
        check_text("title", title, 200)?;
    }
    let title = patch.title.as_deref().map(Conversation::title_from);
    let change = ConversationChange {
        title: title.as_deref(),
        archived: patch.archived,
        pinned: patch.pinned,
        branch: patch.branch,
    };
    let changed = app::chat::conversations::change(&app, caller.principal(), id, change).await?;
    Ok(axum::Json(changed))
}

/// Delete a conversation with all its messages.
///
/// Others than its owner do not find it. It does not come back.
#[utoipa::path(delete, path = "/v1/conversations/{id}", operation_id = "deleteConversation", tag = "conversations",
    params(("id" = ConversationId, Path)), responses((status = 204)))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<ConversationId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    app::chat::conversations::delete(&app, caller.principal(), id).await?;
    if !is_openai_sdk(&headers) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let gone = json!({ "id": id, "object": "conversation.deleted", "deleted": true });
    Ok(axum::Json(gone).into_response())
}

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct MessagesQuery {
    /// Those before this `seq`, the newest first.
    before: Option<i64>,
    /// Those after this `seq`, the oldest first: pass the `next` of such a page here again.
    after: Option<i64>,
    /// The `next` of the page before; the same as `before`.
    cursor: Option<i64>,
    /// Of this branch instead of the active one.
    branch: Option<i32>,
    /// 1 to 100.
    #[serde(default = "default_limit")]
    #[param(minimum = 1, maximum = 100)]
    limit: i64,
}

impl MessagesQuery {
    fn range(&self) -> Result<MessageRange, Problem> {
        let (name, seq, range) = match (self.before, self.after, self.cursor) {
            (None, None, None) => return Ok(MessageRange::Before(i64::MAX)),
            (Some(seq), None, None) => ("before", seq, MessageRange::Before(seq)),
            (None, Some(seq), None) => ("after", seq, MessageRange::After(seq)),
            (None, None, Some(seq)) => ("cursor", seq, MessageRange::Before(seq)),
            _ => {
                let why = "must hold at most one of `before`, `after` and `cursor`";
                return Err(Problem::invalid("query", why));
            }
        };
        if seq < 0 {
            return Err(Problem::invalid(name, "must not be negative"));
        }
        Ok(range)
    }
}

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct MessagePage {
    items: Vec<Message>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
}

/// The messages of a conversation, in its active branch.
///
/// The newest come first, or the oldest with `after`.
#[utoipa::path(get, path = "/v1/conversations/{id}/messages", operation_id = "listMessages", tag = "conversations",
    params(("id" = ConversationId, Path), MessagesQuery), responses((status = 200, body = MessagePage)))]
pub(super) async fn messages(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<ConversationId>,
    Query(which): Query<MessagesQuery>,
) -> Result<axum::Json<MessagePage>, Problem> {
    let limit = check_limit(which.limit, 100)?;
    let selection = MessageSelection {
        branch: which.branch,
        range: which.range()?,
        limit: limit + 1,
    };
    let items = app::chat::conversations::messages(&app, caller.principal(), id, selection).await?;
    let (items, next) = split_page(items, limit, |message| message.seq);
    Ok(axum::Json(MessagePage { items, next }))
}

/// Exactly one of `text`, `menu` and `answer`; with `replaces`, `text` or nothing.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MessageRequest)]
pub(super) struct NewMessage {
    /// What the user says: at most 32768 characters. `/help` and the like are answered by the program.
    #[schema(max_length = 32768)]
    text: Option<String>,
    /// The id of a menu item that the user chose.
    menu: Option<String>,
    /// What the user entered where a `prompt` asked for it.
    answer: Option<PromptAnswer>,
    /// Images and text files that belong to the text, at most 10: ids of this conversation's attachments.
    #[serde(default)]
    attachments: Vec<AttachmentId>,
    /// A message of the user that this one replaces, in a branch of its own: an edit. Without `text` the same is asked
    /// once more. What the replaced messages have asked consent for is taken back. 409 while an answer is on its way.
    replaces: Option<MessageId>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PromptAnswer {
    /// The prompt's `field`.
    field: String,
    value: String,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct Accepted {
    message: Message,
    run: Run,
}

/// Say something.
///
/// The answer comes as events of the conversation. The body is a text, a choice of the menu, or the answer to a
/// question of the conversation. `replaces` begins another branch instead of the message that it names.
#[utoipa::path(post, path = "/v1/conversations/{id}/messages", operation_id = "postMessage", tag = "conversations",
    params(("id" = ConversationId, Path)), request_body = NewMessage,
    responses((status = 202, body = Accepted), (status = 400, description = "unknown_reference, unsupported"),
        (status = 409, description = "conversation_busy, question_closed, limit_reached, no_sign_in"),
        (status = 429, description = "too_many_runs, quota_exceeded")))]
pub(super) async fn post(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<ConversationId>,
    Keyed(new, key): Keyed<NewMessage>,
) -> Result<Located<Accepted>, Problem> {
    let (principal, key) = (caller.principal(), key.as_ref());
    if let Some(replaced) = new.replaces {
        let post = async || {
            app::chat::branches::replace(&app, principal, id, replaced, new.text.as_deref(), key)
                .await
        };
        if new.menu.is_some() || new.answer.is_some() || !new.attachments.is_empty() {
            let why = "may hold only `text` beside `replaces`; attachments stay with the message";
            return Err(Problem::invalid("body", why));
        }
        if let Some(text) = &new.text {
            check_text("text", text, MAX_TEXT)?;
        }
        return post_once(&app, principal, key, post).await;
    }
    let has_files = !new.attachments.is_empty();
    if has_files && (new.menu.is_some() || new.answer.is_some()) {
        return Err(Problem::invalid(
            "attachments",
            "may only stand beside `text`",
        ));
    }
    let (text, field) = match (new.text, new.menu, new.answer) {
        (None, None, None) if has_files => (String::new(), None),
        (Some(text), None, None) => {
            check_text("text", &text, MAX_TEXT)?;
            (text, None)
        }
        (None, Some(item), None) => {
            let command = app::chat::menu::choose(&app, principal, id, &item).await?;
            (command.to_owned(), None)
        }
        (None, None, Some(answer)) => {
            check_text("answer.value", &answer.value, MAX_TEXT)?;
            (answer.value, Some(answer.field))
        }
        _ => {
            return Err(Problem::invalid(
                "body",
                "must hold exactly one of `text`, `menu` and `answer`",
            ));
        }
    };
    let input = MessageInput {
        text: &text,
        attachments: &new.attachments,
        field: field.as_deref(),
    };
    let post = async || app::chat::conversations::post(&app, principal, id, input, key).await;
    post_once(&app, principal, key, post).await
}

/// Posts a message, unless an earlier request with the key has posted it.
async fn post_once(
    app: &App,
    principal: &Principal,
    key: Option<&RequestKey>,
    post: impl AsyncFnOnce() -> Result<PostedMessage, Error>,
) -> Result<Located<Accepted>, Problem> {
    let mut earlier = request_key::join_earlier(app, principal, key).await?;
    let mut posted = None;
    if earlier.is_none() {
        match post().await {
            Err(Error::Repeated) => {
                earlier = request_key::join_earlier(app, principal, key).await?;
            }
            made => posted = Some(made?),
        }
    }
    let posted = match (posted, earlier) {
        (Some(posted), _) => posted,
        (None, Some(begun)) => app::chat::conversations::load_posted(app, principal, begun).await?,
        (None, None) => return Err(Error::Repeated.into()),
    };
    let location = format!("/v1/runs/{}", posted.run.id);
    let accepted = Accepted {
        message: posted.message,
        run: posted.run,
    };
    Ok(located(StatusCode::ACCEPTED, location, accepted))
}
