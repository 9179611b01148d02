// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a long sentence broken into lines?

use crate::printable;

/// Breaks at spaces: lines of at most `width` characters, where words allow it;
/// `first` stands before the first of them, `next` before the others. Ends
/// without a newline.
pub fn wrapped(text: &str, width: usize, first: &str, next: &str) -> String {
    let mut out = String::from(first);
    let mut column = first.chars().count();
    let mut begun = false;
    for word in text.split_whitespace().map(printable) {
        let length = word.chars().count();
        if begun && column + 1 + length > width {
            out.push('\n');
            out += next;
            column = next.chars().count();
        } else if begun {
            out.push(' ');
            column += 1;
        }
        out += &word;
        column += length;
        begun = true;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces_and_keep_their_indent() {
        assert_eq!(wrapped("aaa bb  cc d", 8, "", "  "), "aaa bb\n  cc d");
        assert_eq!(
            wrapped("a_word_longer_than_the_line x", 8, "> ", "  "),
            "> a_word_longer_than_the_line\n  x"
        );
        assert_eq!(wrapped("a\u{1b}b", 80, "", ""), "a\\u{1b}b");
    }
}
