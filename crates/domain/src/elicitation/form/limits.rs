//! The limits of a field, in words that a person reads beside it.

use super::{Field, Format, Kind, kind::TEXT};

impl Field {
    /// The limits in a form that needs no language; empty when there are none.
    pub fn limits(&self) -> String {
        let span = |least: Option<String>, most: Option<String>| match (least, most) {
            (None, None) => String::new(),
            (least, most) => format!(
                "{} … {}",
                least.unwrap_or_default(),
                most.unwrap_or_default()
            )
            .trim()
            .to_owned(),
        };
        match &self.kind {
            Kind::Text {
                format: Some(format),
                ..
            } => match format {
                Format::Email => "name@example.org",
                Format::Uri => "https://…",
                Format::Date => "YYYY-MM-DD",
                Format::DateTime => "YYYY-MM-DDThh:mm:ssZ",
                Format::Password => "",
            }
            .to_owned(),
            Kind::Text { least, most, .. } => {
                let most = Some(*most).filter(|most| *most < TEXT as u64);
                span(
                    Some(*least)
                        .filter(|least| *least > 0)
                        .map(|n| n.to_string()),
                    most.map(|n| n.to_string()),
                )
            }
            Kind::Number { least, most, .. } => {
                span(least.map(|n| n.to_string()), most.map(|n| n.to_string()))
            }
            Kind::Many {
                choices,
                least,
                most,
            } => {
                let most = Some(*most).filter(|most| *most < choices.len() as u64);
                span(
                    Some(*least)
                        .filter(|least| *least > 0)
                        .map(|n| n.to_string()),
                    most.map(|n| n.to_string()),
                )
            }
            Kind::Boolean | Kind::One(_) => String::new(),
        }
    }
}
