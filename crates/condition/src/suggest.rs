// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did somebody mean who wrote a name that does not exist?

const LONGEST: usize = 40;

/// Insertions, deletions, changes and swaps of neighbours between two words,
/// capital letters counting as small ones (optimal string alignment).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    let same = |x: u8, y: u8| x.eq_ignore_ascii_case(&y);
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = above[j - 1] + usize::from(!same(a[i - 1], b[j - 1]));
            row[j] = change.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]) {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = above;
        above = row;
    }
    above[b.len()]
}

/// The nearest of `names`, if it is near enough to be meant: one mistake in
/// three letters. Of equally near ones the first in the alphabet.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST {
        return None;
    }
    let most = (word.len() / 3).max(1);
    names
        .into_iter()
        .filter(|name| name.len() <= LONGEST && name.len().abs_diff(word.len()) <= most)
        .map(|name| (distance(word.as_bytes(), name.as_bytes()), name))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn near_names() {
        let names = ["fsync", "fdatasync", "sync", "open", "EAGAIN"];
        assert_eq!(nearest("fsnyc", names), Some("fsync"));
        assert_eq!(nearest("fdatasnc", names), Some("fdatasync"));
        assert_eq!(nearest("opne", names), Some("open"));
        assert_eq!(nearest("eagain", names), Some("EAGAIN"));
        assert_eq!(nearest("zzz", names), None);
        assert_eq!(nearest("o", ["oa", "ob"]), Some("oa"));
        assert_eq!(nearest(&"o".repeat(1000), names), None);
    }
}
