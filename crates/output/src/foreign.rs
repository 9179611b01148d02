// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is text shown that somebody else wrote?
//!
//! Names of threads, files and functions, arguments, labels, and all strings of
//! a report or recording are chosen by the watched program or by whoever made
//! the file. Nothing of them may move the cursor, change the terminal's state,
//! begin a line of its own, or make text read otherwise than it is written.
//! Everything that prints such text, prints it through this file.

use std::fmt::Write;

/// Longest text that is shown; what is cut is counted.
pub const TEXT_CHARS_MAX: usize = 4096;

/// Characters that are not shown as themselves: controls (C0 with newline and
/// tab, DEL, C1), and of the format characters those without a shape of their
/// own, which turn the writing direction, join, separate lines or hide.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

fn push(out: &mut String, c: char) {
    if is_unprintable(c) {
        out.extend(c.escape_default());
    } else {
        out.push(c);
    }
}

/// Text of foreign origin made safe for one line of a terminal: what cannot be
/// shown stands there escaped (`\n`, `\u{1b}`), and beyond [`TEXT_CHARS_MAX`]
/// characters the number of those left out.
pub fn printable(text: &str) -> String {
    printable_within(text, TEXT_CHARS_MAX)
}

/// The same with a bound of its own.
pub fn printable_within(text: &str, chars_max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(4 * chars_max));
    let mut chars = text.chars();
    for c in chars.by_ref().take(chars_max) {
        push(&mut out, c);
    }
    let more = chars.count();
    if more > 0 {
        let _ = write!(out, "… ({more} more characters)");
    }
    out
}

/// The same for what may be no text at all, as file names and arguments: bytes
/// that are not UTF-8 are shown as `\xff`.
pub fn printable_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    printable(&text)
}

/// The same for text that has lines by design, whose foreign parts went through
/// [`printable`] as it was made: newlines stay.
pub fn printable_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

/// A finished JSON document with the same meaning that can be shown: what is
/// unprintable occurs in strings only, where it can be written as `\u001b`.
/// (JSON itself escapes nothing beyond U+001F.)
pub fn json_printable(document: &str) -> String {
    let mut out = String::with_capacity(document.len());
    let mut units = [0; 2];
    for c in document.chars() {
        // Those of the layout; in strings they are escaped already.
        if c == '\n' || !is_unprintable(c) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

/// A word that a shell reads as exactly these bytes, and that can be shown: as
/// it is, in quotes, or (bash, zsh, ksh) as `$'\x1b'`.
pub fn shell_word(bytes: &[u8]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./=+:,@%^".contains(c);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && text.chars().all(plain) => text.to_owned(),
        Ok(text) if !text.chars().any(is_unprintable) => {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
        _ => {
            let mut out = String::from("$'");
            for chunk in bytes.utf8_chunks() {
                for c in chunk.valid().chars() {
                    if c == '\'' || c == '\\' {
                        out.push('\\');
                        out.push(c);
                    } else if is_unprintable(c) {
                        let mut units = [0; 4];
                        for byte in c.encode_utf8(&mut units).bytes() {
                            // Three octal digits end by themselves; hexadecimal
                            // ones would swallow a digit that follows.
                            let _ = write!(out, "\\{byte:03o}");
                        }
                    } else {
                        out.push(c);
                    }
                }
                for byte in chunk.invalid() {
                    let _ = write!(out, "\\{byte:03o}");
                }
            }
            out.push('\'');
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_is_left() {
        let mut unseen = 0;
        for c in '\0'..=char::MAX {
            let shown = printable(&c.to_string());
            if shown == c.to_string() {
                continue;
            }
            unseen += 1;
            assert!(shown.starts_with('\\') && shown.bytes().all(|b| (b' '..0x7f).contains(&b)));
        }
        assert!(unseen > 65);
        for named in [
            '\0', '\t', '\n', '\r', '\u{1b}', '\u{7f}', '\u{80}', '\u{9b}', '\u{9d}', '\u{61c}',
            '\u{200b}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{202a}', '\u{202e}',
            '\u{2066}', '\u{2069}', '\u{feff}',
        ] {
            assert!(is_unprintable(named), "{named:?}");
        }
        for shown in ['a', '\\', 'é', 'µ', '…', '→', '語', '😀', '\u{fffd}'] {
            assert!(!is_unprintable(shown), "{shown:?}");
        }
        assert_eq!(
            printable("a\x1b[31mb\nc\u{202e}d"),
            "a\\u{1b}[31mb\\nc\\u{202e}d"
        );
        // Text that went through it once is not changed again.
        let once = printable("\u{9b}2J\t");
        assert_eq!(printable(&once), once);
    }

    #[test]
    fn what_is_cut_is_counted() {
        let long = "x".repeat(TEXT_CHARS_MAX + 7);
        assert!(printable(&long).ends_with("x… (7 more characters)"));
        assert_eq!(printable(&long[7..]), &long[7..]);
        assert_eq!(printable_within("héllo", 2), "hé… (3 more characters)");
    }

    #[test]
    fn bytes_that_are_no_text_are_shown() {
        assert_eq!(
            printable_bytes(b"a\xff\x1b\xc3\xa9\xe2\x80"),
            "a\\xff\\u{1b}é\\xe2\\x80"
        );
    }

    #[test]
    fn a_json_document_keeps_its_meaning() {
        // As a serialiser writes it: DEL, C1 and beyond as themselves.
        let document = "{\n  \"a\u{7f}\": \"\\u001b \\n \u{9b}\u{202e}\u{e0041}é\"\n}\n";
        let shown = json_printable(document);
        assert_eq!(
            shown,
            "{\n  \"a\\u007f\": \"\\u001b \\n \\u009b\\u202e\\udb40\\udc41é\"\n}\n"
        );
    }

    #[test]
    fn a_shell_reads_words_as_they_are() {
        for bytes in [
            &b"plain"[..],
            b"",
            b"two words",
            b"it's",
            b"$(reboot) `x` \"y\" \\",
            b"a\nb\x1b[31m1'\\\t",
            b"\xff\xfe7 \xe2\x80\xae",
            "ünï → \u{202e}x".as_bytes(),
        ] {
            let word = shell_word(bytes);
            assert_eq!(printable(&word), word);
            let output = std::process::Command::new("bash")
                .arg("-c")
                .arg(format!("printf %s {word}"))
                .env("LC_ALL", "C.UTF-8")
                .output()
                .expect("bash");
            assert_eq!(output.stdout, bytes, "{word}");
        }
    }
}
