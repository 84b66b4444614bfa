//! Compares JSON with the part of it that a test is about, and says what differs and where.

use serde_json::Value;

pub trait Has {
    /// Fails unless every member of `wanted` is here with its value. Objects inside may have more members, lists may
    /// not have more elements; `null` is a member that is there and null.
    fn has(&self, wanted: Value);

    /// Fails unless this is a text with these words in it.
    fn says(&self, words: &str);
}

impl Has for Value {
    #[track_caller]
    fn has(&self, wanted: Value) {
        let mut differences = Vec::new();
        compare("", Some(self), &wanted, &mut differences);
        assert!(
            differences.is_empty(),
            "{}\nin {self:#}",
            differences.join("\n")
        );
    }

    #[track_caller]
    fn says(&self, words: &str) {
        let text = self.as_str().unwrap_or_default();
        assert!(text.contains(words), "{words:?} is not in {self}");
    }
}

fn compare(path: &str, found: Option<&Value>, wanted: &Value, differences: &mut Vec<String>) {
    match (found, wanted) {
        (Some(Value::Object(found)), Value::Object(wanted)) => {
            for (name, wanted) in wanted {
                let path = format!("{path}/{name}");
                compare(&path, found.get(name), wanted, differences);
            }
        }
        (Some(Value::Array(found)), Value::Array(wanted)) if found.len() == wanted.len() => {
            for (at, (found, wanted)) in found.iter().zip(wanted).enumerate() {
                compare(&format!("{path}/{at}"), Some(found), wanted, differences);
            }
        }
        (Some(found), wanted) if found == wanted => {}
        (found, wanted) => {
            let found = found.map_or("nothing".to_owned(), Value::to_string);
            differences.push(format!("{path}: wanted {wanted}, found {found}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use serde_json::json;

    use super::*;

    /// What is said of the differences, without the whole answer.
    fn said(wanted: Value) -> String {
        let answer = json!({ "state": "failed", "error": { "code": "busy", "detail": "later" },
            "items": [{ "id": 1, "name": "a" }, { "id": 2, "name": "b" }], "none": null });
        let whole = format!("\nin {answer:#}");
        match catch_unwind(AssertUnwindSafe(|| answer.has(wanted))) {
            Ok(()) => String::new(),
            Err(panic) => {
                let said = panic.downcast_ref::<String>().unwrap();
                said.strip_suffix(&whole).unwrap().to_owned()
            }
        }
    }

    #[test]
    fn a_part_of_an_answer_is_in_it() {
        assert_eq!(said(json!({})), "");
        assert_eq!(said(json!({ "state": "failed", "none": null })), "");
        assert_eq!(said(json!({ "error": { "code": "busy" } })), "");
        assert_eq!(said(json!({ "items": [{ "id": 1 }, { "name": "b" }] })), "");
    }

    #[test]
    fn a_text_says_its_words_and_no_others() {
        let text = json!("not today");
        text.says("day");
        let wrong = catch_unwind(AssertUnwindSafe(|| text.says("night"))).unwrap_err();
        let wrong = wrong.downcast_ref::<String>().unwrap();
        assert_eq!(wrong, r#""night" is not in "not today""#);
        assert!(catch_unwind(AssertUnwindSafe(|| json!(["day"]).says("day"))).is_err());
    }

    #[test]
    fn what_differs_is_named_with_its_place() {
        for (wanted, difference) in [
            (
                json!({ "state": "done" }),
                r#"/state: wanted "done", found "failed""#,
            ),
            (json!({ "gone": null }), "/gone: wanted null, found nothing"),
            (
                json!({ "none": 1, "error": { "code": "busy", "retry": true } }),
                "/none: wanted 1, found null\n/error/retry: wanted true, found nothing",
            ),
            (
                json!({ "items": [{ "id": 1 }, { "id": 3 }] }),
                "/items/1/id: wanted 3, found 2",
            ),
            (
                json!({ "items": [{ "id": 1 }] }),
                r#"/items: wanted [{"id":1}], found [{"id":1,"name":"a"},{"id":2,"name":"b"}]"#,
            ),
            (
                json!({ "state": {} }),
                r#"/state: wanted {}, found "failed""#,
            ),
        ] {
            assert_eq!(said(wanted), difference);
        }
    }
}
