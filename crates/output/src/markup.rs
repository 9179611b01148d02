// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does text that somebody else wrote stand in a page or a picture?

use crate::printable;

/// Escapes for element content and for attributes in double quotes; control
/// characters and those that turn the writing direction are shown escaped.
pub fn escape(foreign: &str) -> String {
    let mut out = String::with_capacity(foreign.len() + 8);
    for c in printable(foreign).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A JSON document that cannot end its script element, nor begin a comment in it.
pub fn script_json(document: &str) -> String {
    let mut out = String::with_capacity(document.len());
    for c in document.chars() {
        match c {
            // These occur in strings only.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_foreign_leaves_its_place() {
        assert_eq!(
            escape("a<b>&\"c'\u{202e}\u{7}\n"),
            "a&lt;b&gt;&amp;&quot;c&#39;\\u{202e}\\u{7}\\n"
        );
        let json = script_json("{\"a\":\"</script><!--&\u{2028}\"}");
        assert_eq!(json, r#"{"a":"\u003c/script\u003e\u003c!--\u0026\u2028"}"#);
    }
}
