// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a name fit a pattern in which `*` stands for any characters and `?`
//! for one?

/// Bytes are compared; a `?` takes a whole UTF-8 character.
pub fn fits(pattern: &str, name: &str) -> bool {
    let (p, n) = (pattern.as_bytes(), name.as_bytes());
    let width = |at: usize| {
        let mut end = at + 1;
        while end < n.len() && n[end] & 0xc0 == 0x80 {
            end += 1;
        }
        end - at
    };
    let (mut pi, mut ni) = (0, 0);
    // Where the last `*` stands, and how much it has taken so far.
    let mut star: Option<(usize, usize)> = None;
    while ni < n.len() {
        match p.get(pi) {
            Some(b'*') => {
                star = Some((pi, ni));
                pi += 1;
            }
            Some(b'?') => {
                pi += 1;
                ni += width(ni);
            }
            Some(byte) if *byte == n[ni] => {
                pi += 1;
                ni += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    pi = at + 1;
                    ni = taken + 1;
                }
                None => return false,
            },
        }
    }
    p[pi..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name) in [
            ("", ""),
            ("*", ""),
            ("*", "anything"),
            ("page-*", "page-in"),
            ("*-in", "swap-in-in"),
            ("a*b*c", "aXbbYc"),
            ("p?ge", "page"),
            ("??", "åb"),
            ("nginx", "nginx"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("", "x"),
            ("?", ""),
            ("page-*", "page"),
            ("a*b", "abc"),
            ("*a", "ab"),
            ("Page", "page"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
