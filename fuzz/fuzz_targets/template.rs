//! Templates: parsing never panics, and what is resolved is never read again.
#![no_main]

use domain::template::{Source, Template};
use libfuzzer_sys::fuzz_target;

const SOURCES: [Source; 4] = [Source::Env, Source::Params, Source::Scope, Source::Runner];

fuzz_target!(|text: &str| {
    for parsed in [Template::parse(text), Template::parse_sourced(text, &SOURCES), Template::parse_user(text, "token")]
    {
        let Ok(template) = parsed else { continue };
        // A value that looks like a reference stays what it is.
        let value = "${SECRET}{token}";
        let resolved = template.resolve(|_| Some(value)).expect("everything has a value");
        if template.is_one_reference() && !text.contains("base64") {
            assert_eq!(resolved, value);
        }
        if template.references().next().is_none() {
            assert_eq!(template.resolve(|_| None).expect("nothing is missing"), resolved);
        } else {
            assert!(template.resolve(|_| None).is_err());
        }
        let _ = template.address(|_| Some(value));
    }
});
