//! OpenAPI schemas of fields that OpenAI's clients write in more than one way.

use utoipa::openapi::schema::{
    AdditionalProperties, Array, ArrayBuilder, Object, ObjectBuilder, SchemaType, Type,
};

fn any_object() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .additional_properties(Some(AdditionalProperties::FreeForm(true)))
        .build()
}

/// Text, or a list of parts; nothing in a message that only calls tools.
pub(in crate::api) fn content() -> Array {
    ArrayBuilder::new()
        .schema_type(SchemaType::from_iter([
            Type::String,
            Type::Array,
            Type::Null,
        ]))
        .items(any_object())
        .build()
}

/// Text, or a list of items.
pub(super) fn input() -> Array {
    ArrayBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Array]))
        .items(any_object())
        .min_items(Some(1))
        .build()
}

/// A text, or several.
pub(super) fn texts() -> Array {
    ArrayBuilder::new()
        .schema_type(SchemaType::from_iter([
            Type::String,
            Type::Array,
            Type::Null,
        ]))
        .items(ObjectBuilder::new().schema_type(Type::String))
        .build()
}

/// The schema of a parameter that is a word or an object.
pub(super) fn word_or_object() -> Object {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([
            Type::String,
            Type::Object,
            Type::Null,
        ]))
        .additional_properties(Some(AdditionalProperties::FreeForm(true)))
        .build()
}
