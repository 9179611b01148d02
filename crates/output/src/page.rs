// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is the shell of every page that DeBox writes?
//!
//! One file that needs no other. A content security policy admits the one
//! script, by its hash, and nothing from elsewhere.

use crate::{escape, script_json};
use base64::Engine as _;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Of all pages.
pub const PAGE_STYLE: &str = include_str!("../assets/page.css");

/// What a content security policy says to admit this script.
pub fn script_policy(script: &str) -> String {
    let hash = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(script));
    format!("'sha256-{hash}'")
}

/// A part of a page with a heading of its own.
pub struct Section {
    pub id: &'static str,
    pub title: &'static str,
    /// HTML made by us.
    pub body: String,
}

/// Text is escaped here; what is HTML already is called so.
pub struct Page<'a> {
    pub title: &'a str,
    pub version: &'a str,
    /// Rules beyond those of all pages.
    pub style: &'a str,
    /// HTML above the sections.
    pub header: String,
    /// Those without a body are left out.
    pub sections: Vec<Section>,
    /// A sentence at the end.
    pub footer: &'a str,
    /// A JSON document and the script that draws from it.
    pub script: Option<(&'a str, &'a str)>,
}

impl Page<'_> {
    pub fn html(&self) -> String {
        let sections: Vec<&Section> = self
            .sections
            .iter()
            .filter(|s| !s.body.is_empty())
            .collect();
        let mut out = String::with_capacity(1 << 18);
        self.head(&mut out);
        if let Some(first) = sections.first() {
            let _ = writeln!(
                out,
                "<a class=\"skip\" href=\"#{}\">Skip to: {}</a>",
                first.id, first.title
            );
        }
        let _ = writeln!(out, "<header>\n{}</header>", self.header);
        out += "<nav aria-label=\"Sections\"><ul>\n";
        for s in &sections {
            let _ = writeln!(out, "<li><a href=\"#{}\">{}</a></li>", s.id, s.title);
        }
        out += "</ul></nav>\n<main>\n";
        for s in &sections {
            let _ = write!(
                out,
                "<section id=\"{0}\" aria-labelledby=\"{0}-title\">\n\
                 <h2 id=\"{0}-title\">{1}</h2>\n{2}</section>\n",
                s.id, s.title, s.body
            );
        }
        let _ = writeln!(
            out,
            "</main>\n<footer>Made by DeBox {}. {}</footer>",
            escape(self.version),
            escape(self.footer)
        );
        if let Some((data, script)) = self.script {
            let data = script_json(data);
            let _ = write!(
                out,
                "<script type=\"application/json\" id=\"data\">{data}</script>\n<script>{script}</script>\n"
            );
        }
        out + "</body>\n</html>\n"
    }

    fn head(&self, out: &mut String) {
        let script = self.script.map_or(String::new(), |(_, script)| {
            format!(" script-src {};", script_policy(script))
        });
        let _ = write!(
            out,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             style-src 'unsafe-inline';{script} base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta name=\"generator\" content=\"DeBox {}\">\n\
             <title>{}</title>\n<style>\n{PAGE_STYLE}{}</style>\n</head>\n<body>\n",
            escape(self.version),
            escape(self.title),
            self.style
        );
    }
}

/// A table that no script sorts; the columns in `words` stand left, the first
/// one holds names. Nothing without rows.
pub fn html_table(head: &[&str], rows: &[Vec<String>], words: &[usize]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let class = |c: usize| {
        if c == 0 || words.contains(&c) {
            ""
        } else {
            " class=\"n\""
        }
    };
    let mut out = String::from("<div class=\"scroll\"><table class=\"plain\"><thead><tr>");
    for (c, h) in head.iter().enumerate() {
        let _ = write!(out, "<th{}>{}</th>", class(c), escape(h));
    }
    out += "</tr></thead><tbody>\n";
    for row in rows {
        out += "<tr>";
        for (c, cell) in row.iter().enumerate() {
            let tag = if c == 0 { "th" } else { "td" };
            let _ = write!(out, "<{tag}{}>{}</{tag}>", class(c), escape(cell));
        }
        out += "</tr>\n";
    }
    out + "</tbody></table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_foreign_leaves_its_place() {
        let page = Page {
            title: "<b>\u{1b}",
            version: "\"1",
            style: "",
            header: String::new(),
            sections: vec![Section {
                id: "a",
                title: "A",
                body: html_table(&["<i>"], &[vec!["<u>".into()]], &[]),
            }],
            footer: "<s>",
            script: Some(("{\"x\":\"</script>\"}", "let a = 1;")),
        }
        .html();
        for element in ["<b>", "<i>", "<u>", "<s>", "\u{1b}"] {
            assert!(!page.contains(element), "{element} in {page}");
        }
        assert_eq!(page.matches("</script>").count(), 2);
        assert!(page.contains("script-src 'sha256-"));
    }

    #[test]
    fn a_page_without_a_script_admits_none() {
        let page = Page {
            title: "",
            version: "",
            style: "",
            header: String::new(),
            sections: Vec::new(),
            footer: "",
            script: None,
        }
        .html();
        assert!(!page.contains("script-src") && !page.contains("<script"));
        assert!(page.contains("default-src 'none'"));
    }

    #[test]
    fn the_style_stays_in_its_element() {
        for what in ["</", "url(", "@import"] {
            assert!(!PAGE_STYLE.contains(what), "{what}");
        }
    }
}
