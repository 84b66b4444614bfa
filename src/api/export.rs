//! The export of a conversation as a file.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::header;
use serde::Deserialize;

use super::{
    attachments::disposition_of,
    extract::{Caller, Path, Query},
    problem::Problem,
};
use crate::app::{self, App, chat::export::ConversationExport};
use domain::{error::Error, hidden::escape_hidden, ids::ConversationId};

#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportQuery {
    /// `markdown`, the default, or `json`.
    #[serde(default)]
    #[param(inline)]
    format: ExportFormat,
}

#[derive(Clone, Copy, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum ExportFormat {
    #[default]
    Markdown,
    Json,
}

/// A whole conversation, in its active branch.
///
/// Markdown for people, JSON for programs.
#[utoipa::path(get, path = "/v1/conversations/{id}/export", operation_id = "exportConversation",
    tag = "conversations", params(("id" = ConversationId, Path), ExportQuery),
    responses((status = 200, content((ConversationExport = "application/json"), (String = "text/markdown")))))]
pub(super) async fn export(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<ConversationId>,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Problem> {
    let export = app::chat::export::export(&app, caller.principal(), id).await?;
    let title = Some(export.conversation.title.as_str()).filter(|title| !title.is_empty());
    let title: String = title.unwrap_or("conversation").chars().take(60).collect();
    let disposition = |ending: &str| {
        let value = disposition_of("attachment", &format!("{title}.{ending}"));
        [(header::CONTENT_DISPOSITION, value)]
    };
    Ok(match query.format {
        ExportFormat::Json => {
            let media_type = [(header::CONTENT_TYPE, "application/json")];
            let text = serde_json::to_string(&export).map_err(Error::internal)?;
            // Escaped, so that no character of the file controls a terminal that shows it.
            (disposition("json"), media_type, escape_hidden(&text)).into_response()
        }
        ExportFormat::Markdown => {
            let media_type = [(header::CONTENT_TYPE, "text/markdown; charset=utf-8")];
            let text = export.markdown(caller.principal());
            (disposition("md"), media_type, text).into_response()
        }
    })
}
