//! Schemas of tools, skills, prompts and resources.

use crate::{
    params::{self, ParamKind},
    prompt, resource, schemas,
};

schemas! {
    /// One parameter.
    struct Param for params::Param {
        #[serde(rename = "type")]
        kind: ParamKind,
        required: bool,
        description: Option<String>,
    }
    #[serde(rename_all = "lowercase")]
    enum ParamKind for params::ParamKind {
        String,
        /// Any JSON.
        Json,
        Boolean,
        Number,
    }
    /// What a prompt may or must be given.
    struct PromptArgument for prompt::PromptArgument {
        name: String,
        #[schema(required = false)]
        description: String,
        #[schema(required = false)]
        required: bool,
    }
    /// What was read: text, or bytes in Base64.
    struct Content for resource::Content {
        uri: String,
        mime_type: Option<String>,
        text: Option<String>,
        blob: Option<String>,
    }
}
